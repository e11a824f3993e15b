"""``normless inspect MODEL``: the residual structure, the parameters by role, and the changes of schemes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli._names import check_names
from normless.cli._network import (
    add_network_arguments,
    as_text,
    heading,
    image_shape,
    model_with_inputs,
    shapes,
    table,
    terminal_width,
)
from normless.cli._output import add_json_flag, answer, working
from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from rich.table import Table

    from normless.cli._inspection import Inspection

SUFFIXES = (".svg", ".png", ".pdf")
_ROLES = "γ: last at the end of a branch, down on a skip path, other elsewhere"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, its inputs and mode, and the form of the answer."""
    add_network_arguments(parser)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--train",
        action="store_true",
        help="inspect it in training mode; by default in the mode in which it is built",
    )
    modes.add_argument("--eval", action="store_true", help="inspect it in evaluation mode")
    parser.add_argument(
        "--schemes",
        type=str,
        nargs="*",
        default=None,
        help="schemes to plan, such as skipinit or fixup(gain=0.1); by default all but trained and those that run "
        "the network, none if it is converted",
    )
    parser.add_argument("--all", action="store_true", help="also say why each other scheme cannot be applied")
    parser.add_argument(
        "--figure", type=Path | None, default=None, help="draw the network to this file: .svg, .png or .pdf"
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Build and inspect the network, and print the result."""
    check_names(vars(namespace))
    shape = image_shape(namespace)
    figure = namespace.figure
    if figure is not None and figure.suffix.lower() not in SUFFIXES:
        raise ValueError(f"Expected --figure to end in {', '.join(SUFFIXES)}, got {str(figure)!r}.")

    with working(namespace, f"reading {namespace.model}"):
        from normless.cli._inspection import inspect_network
        from normless.conversion import scheme_of

        model, inputs = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        if namespace.train or namespace.eval:
            model.train(namespace.train)
        scheme = scheme_of(model)
        everything = () if scheme is not None else None
        schemes = everything if namespace.schemes is None else tuple(namespace.schemes)
        inspection = inspect_network(model, inputs, schemes=schemes)
    if figure is not None:
        EXTENSIONS["map_figure"](inspection.map, namespace.model, figure)
    mode = "train" if model.training else "eval"
    header = {"model": namespace.model, "converted_by": scheme, "input": shapes(inputs), "mode": mode}
    parts = [
        heading(namespace.model, scheme, inputs, f"{mode} mode"),
        *_parts(inspection, namespace.all or bool(schemes)),
    ]
    parts += [f"wrote {figure}"] if figure is not None else []
    return answer(namespace, header | inspection.to_dict(), "\n\n".join(parts))


def _parts(inspection: Inspection, reasons: bool) -> list[str]:
    """Format the blocks, the totals, the parameters, the schemes and the unresolved parts as text."""
    from normless.residual._table import format_blocks

    parts = [format_blocks(inspection.map, terminal_width()), _totals(inspection)]
    parts += [as_text(_parameter_table(inspection)), *_schemes(inspection, reasons)]
    left = [f"  {item}" for item in inspection.map.unresolved]
    return [*parts, "\n".join(["unresolved", *left]) if left else "unresolved: nothing"]


def _totals(inspection: Inspection) -> str:
    totals, depth, norms = inspection.to_dict()["totals"], inspection.map.depth, len(inspection.map.norms)
    by_m = ", ".join(f"{count} with m = {m}" for m, count in totals["blocks_by_m"].items())
    lines = [f"L = {depth} residual blocks" + (f": {by_m}" if by_m else "")]
    if depth:
        lines.append(f"identity skip paths: {totals['identity_skips']} of {depth}")
    if totals["inner_blocks"]:
        lines.append(f"further blocks inside branches: {totals['inner_blocks']}")
    roles = ", ".join(f"{count} {role}" for role, count in totals["norms_by_role"].items())
    lines.append(f"{totals['weight_layers']} weight layers, {norms} norms" + (f": {roles}" if roles else ""))
    if depth:
        lines += ["m: weight layers on the branch", _ROLES]
    return "\n".join(lines)


def _parameter_table(inspection: Inspection) -> Table:
    """Format the numbers of parameters by group, and whether the guidelines decay them."""
    groups = inspection.groups
    rows = [
        (group.name, f"{group.tensors}", f"{group.parameters:,}", "yes" if group.decayed else "no")
        for group in groups
    ]
    total = sum(group.parameters for group in groups)
    decayed = sum(group.parameters for group in groups if group.decayed)
    share = f"{decayed:,} ({decayed / total:.1%})" if total else ""
    rows.append(("together", f"{sum(group.tensors for group in groups)}", f"{total:,}", share))
    return table(("group", "tensors", "parameters", "decayed by the guidelines"), rows, right=(1, 2))


def _schemes(inspection: Inspection, reasons: bool) -> list[str]:
    """Format the changes of each scheme that fits, counted by edit, then the others with reasons, or their number."""
    fits: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for item in inspection.schemes:
        counted = ", ".join(f"{count} {edit.partition('(')[0]}" for edit, count in item.by_edit.items())
        (fits if item.reason is None else others).append((item.scheme, item.reason or counted or "nothing"))
    parts = [as_text(table(("scheme", "would change"), fits))] if fits else []
    if others and reasons:
        parts.append(as_text(table(("scheme", "cannot be planned here, since"), others)))
    elif others:
        words = "1 other scheme is" if len(others) == 1 else f"{len(others)} other schemes are"
        parts.append(f"{words} not planned here; --all, or --schemes NAME, says why")
    return parts
