"""The residual map printed as a table that a person recognises their network in."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from normless.residual.blocks import Layer, ResidualBlock, ResidualMap, Role

SHOWN_AT_EACH_END = 20


def format_map(residual_map: ResidualMap) -> str:
    """A table with one row per block between the stem's and the head's; the middle of a very deep one is left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("#", "name", "branch", "skip path", "after the sum"):
        table.add_column(title, justify="right" if title == "#" else "left", overflow="fold")
    roles = residual_map.norms
    table.add_row("", "stem", _sequence(residual_map.stem_layers, roles), "", "")
    hidden = residual_map.depth - 2 * SHOWN_AT_EACH_END
    for index, block in enumerate(residual_map.blocks):
        if hidden > 1 and index == SHOWN_AT_EACH_END:
            table.add_row("…", f"{hidden} more blocks", "", "", "")
        if hidden > 1 and SHOWN_AT_EACH_END <= index < SHOWN_AT_EACH_END + hidden:
            continue
        table.add_row(str(index + 1), *_block_row(block, roles))
    if residual_map.trunk_layers:
        table.add_row("", "between blocks", _sequence(residual_map.trunk_layers, roles), "", "")
    table.add_row("", "head", _sequence(residual_map.head_layers, roles), "", "")
    console = Console(width=200, no_color=True, highlight=False, emoji=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines())
    return f"{residual_map.depth} residual blocks\n{text}"


def _block_row(block: ResidualBlock, roles: dict[str, Role]) -> tuple[str, str, str, str]:
    branch = _sequence(block.branch_layers, roles)
    if block.shared_layers:
        branch = f"[{_sequence(block.shared_layers, roles)}] → {branch}"
    skip = _sequence(block.skip_layers, roles)
    if not skip:
        skip = "identity" if block.identity_skip else "no weights"
    return block.name, branch, skip, _sequence(block.after_sum, roles)


def _sequence(layers: tuple[Layer, ...], roles: dict[str, Role]) -> str:
    return " → ".join(_name(layer, roles) for layer in layers)


def _name(layer: Layer, roles: dict[str, Role]) -> str:
    text = layer.description or layer.path
    return f"{text} (γ {roles[layer.path]})" if layer.path in roles else text
