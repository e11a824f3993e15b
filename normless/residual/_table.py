"""Print a residual map as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Protocol

from rich.console import Console
from rich.table import Table

from normless._internal.html import html_table
from normless.residual._blocks import Layer, ResidualBlock, Role

SHOWN_AT_EACH_END = 20
WIDTH = 200
TITLES = ("#", "block", "m", "branch", "skip path", "after the sum")
# A placeholder for a space without a line break, until the table is printed.
GLUE = "\ue000"
ARROW = f"{GLUE}→ "


class Shown(Protocol):
    """The attributes of a residual map that a table shows."""

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The outermost blocks."""

    @property
    def depth(self) -> int:
        """The number of these blocks."""

    @property
    def stem_layers(self) -> tuple[Layer, ...]:
        """Layers before the first block."""

    @property
    def trunk_layers(self) -> tuple[Layer, ...]:
        """Layers between blocks."""

    @property
    def head_layers(self) -> tuple[Layer, ...]:
        """Layers after the last block."""

    @property
    def norms(self) -> dict[str, Role]:
        """Roles of the norms by their paths."""

    @property
    def directions(self) -> dict[str, str]:
        """The reason for each norm outside the trunk, by path."""

    @property
    def unresolved(self) -> tuple[object, ...]:
        """The parts that could not be placed."""


def format_map(residual_map: Shown) -> str:
    """Format the number of blocks, their table and the unresolved parts."""
    parts = [f"{residual_map.depth} residual blocks", format_blocks(residual_map)]
    if residual_map.directions:
        parts += ["norms that are not of the trunk", *map(": ".join, residual_map.directions.items())]
    if residual_map.unresolved:
        parts += ["unresolved", *(f"  {item}" for item in residual_map.unresolved)]
    return "\n".join(parts)


def format_blocks(residual_map: Shown, width: int = WIDTH) -> str:
    """Format a table with one row per block between those of the stem and the head.

    The middle of a very deep network is omitted. Blocks inside a branch follow the block around them, indented. Each
    of several branches has its own line that starts with +, and so has a layer that does not read the one before it,
    as one of several heads. Layers that only compute a factor for the branch are in parentheses. `width` is the
    number of characters in a line; longer cells continue in the next line.
    """
    rows = _shown_rows(residual_map)
    console = Console(width=width, no_color=True, highlight=False, emoji=False, markup=False)
    table = _table(rows)
    # A measurement is never above the width of its console.
    if console.measure(table, options=console.options.update_width(sys.maxsize)).minimum > width:
        # Names are broken between words rather than anywhere; a role stays whole.
        table = _table([[cell.replace(GLUE, " ").replace("(γ ", f"(γ{GLUE}") for cell in row] for row in rows])
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().replace(GLUE, " ").splitlines())


def html_of_map(residual_map: Shown) -> str:
    """Return the blocks and the unresolved parts for a notebook."""
    rows = [[cell.replace(GLUE, " ") for cell in row] for row in _shown_rows(residual_map)]
    count, parts = f"{residual_map.depth} residual blocks", len(residual_map.unresolved)
    return html_table(f"{count}, {parts} parts unresolved" if parts else count, TITLES, rows)


def _shown_rows(residual_map: Shown) -> list[tuple[str, ...]]:
    """Return the rows of the blocks, without the middle of a very deep network, and of the stem and the head."""
    rows: list[tuple[str, ...]] = []
    roles = residual_map.norms

    def add_layers(name: str, layers: tuple[Layer, ...]) -> None:
        if layers:
            rows.append(("", name, "", _sequence(layers, roles), "", ""))

    add_layers("stem" if residual_map.blocks else "layers", residual_map.stem_layers)
    hidden = residual_map.depth - 2 * SHOWN_AT_EACH_END
    for index, block in enumerate(residual_map.blocks):
        if hidden > 1 and index == SHOWN_AT_EACH_END:
            rows.append(("…", f"{hidden} more blocks", "", "", "", ""))
        if hidden <= 1 or not SHOWN_AT_EACH_END <= index < SHOWN_AT_EACH_END + hidden:
            rows += _rows(block, roles, str(index + 1))
    add_layers("between blocks", residual_map.trunk_layers)
    add_layers("head", residual_map.head_layers)
    return rows


def _table(rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in TITLES:
        table.add_column(title, justify="right" if title in ("#", "m") else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _rows(block: ResidualBlock, roles: dict[str, Role], number: str, level: int = 0) -> Iterator[tuple[str, ...]]:
    """Iterate over the rows of a block and the blocks inside its branch."""
    branch = _sequence(block.branch_layers, roles)
    if len(block.branches) > 1:
        branch = "\n".join(f"+ {_sequence(layers, roles)}" for layers in block.branches)
    if block.shared_layers:
        branch = f"[{_sequence(block.shared_layers, roles)}]{ARROW}{branch}"
    skip = _sequence(block.skip_layers, roles)
    if not skip:
        skip = "identity" if block.identity_skip else "no weights"
    name = f"{'  ' * (level - 1)}└ {block.name}" if level else block.name
    yield number, name, str(block.m), branch or "no layers", skip, _sequence(block.after_sum, roles)
    for inner in block.inner:
        yield from _rows(inner, roles, "", level + 1)


def _sequence(layers: tuple[Layer, ...], roles: dict[str, Role]) -> str:
    """Join layers by arrows, with gates in parentheses; omit the middle of a very long sequence."""
    hidden = len(layers) - 2 * SHOWN_AT_EACH_END
    if hidden > 1:
        first, last = layers[:SHOWN_AT_EACH_END], layers[-SHOWN_AT_EACH_END:]
        gap = f"… {hidden} more layers …".replace(" ", GLUE)
        return ARROW.join([_sequence(first, roles), gap, _sequence(last, roles)])
    parts = []
    for gating, run in groupby(layers, key=lambda layer: layer.gating):
        named = list(run)
        text = _joined([_name(layer, roles) for layer in named], [layer.beside for layer in named])
        parts.append((f"({text})" if gating else text, named[0].beside))
    return _joined(*map(list, zip(*parts, strict=True))) if parts else ""


def _joined(texts: list[str], beside: list[bool]) -> str:
    """Join texts by arrows; one that is beside the former begins a line with +."""
    joined = texts[0]
    for text, is_beside in zip(texts[1:], beside[1:], strict=True):
        joined += f"\n+ {text}" if is_beside else f"{ARROW}{text}"
    return joined


def _name(layer: Layer, roles: dict[str, Role]) -> str:
    text = layer.description or layer.path
    if layer.path in roles:
        text += f" ({roles[layer.path]}, no γ)" if layer.gamma is None else f" (γ {roles[layer.path]})"
    return text.replace(" ", GLUE)
