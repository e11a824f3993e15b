"""Snapshots of maps, plans and changes of the module tree, as text that a person can review.

`make goldens` writes `goldens/KIND.txt`; the tests compare. In a block, `.x` is the module `BLOCK.x`, `~` an
activation, `%` dropout, `*` a scale, `!` a norm outside the trunk, `γ` a norm with its role, `(x)` a gate. What a
removed module had is not listed.
Numbers that depend on random weights are left out.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import normless as nl
from gallery.row import ROWS, Row
from normless.errors import NormlessError
from normless.residual import Layer

FOLDER = Path(__file__).with_name("goldens")
SCHEMES = ("skipinit", "fixup")
MARKS = {"activation": "~", "dropout": "%", "scale": "*", "direction": "!"}


def snapshot(row: Row, found: nl.ResidualMap, convert: Callable[[str], nn.Module]) -> str:
    """The text of a row from its map and its conversions."""
    model = row.network()
    lines = [row.odd and f"# {row.odd}", *_of_map(found), *_of_groups(model, found)]
    for scheme in SCHEMES:
        try:
            net = convert(scheme)
        except NormlessError as error:
            lines.append(f"{scheme} refused: {without_numbers(str(error))}")
            continue
        lines += [f"{scheme} plan:", *(f"  {line}" for line in _of_plan(net))]
        lines += [f"{scheme} changes:", *(f"  {line}" for line in _of_changes(model, net))]
    return "\n".join(filter(None, lines)) + "\n"


def _of_map(found: nl.ResidualMap) -> Iterator[str]:
    yield f"stem: {_layers(found, found.stem_layers)}"
    for block in found.blocks:
        yield from _of_block(found, block, "")
    yield f"trunk: {_layers(found, found.trunk_layers)}" if found.trunk_layers else ""
    yield f"head: {_layers(found, found.head_layers)}"
    yield f"classifier: {found.classifier}"
    yield from (f"head {head.path}: {head.obstacle or 'logits'}" for head in found.heads)
    yield from (f"outside the trunk {path}: {reason}" for path, reason in found.directions.items())
    yield from (f"unresolved {without_numbers(str(part))}" for part in found.unresolved)


def _of_block(found: nl.ResidualMap, block: nl.ResidualBlock, indent: str) -> Iterator[str]:
    around = block.name.partition("#")[0]
    parts = [f"[{_layers(found, block.shared_layers, around)}]"] if block.shared_layers else []
    parts.append(" + ".join(_layers(found, branch, around) or "nothing" for branch in block.branches))
    if block.skip_layers or not block.identity_skip:
        parts.append(f"| {_layers(found, block.skip_layers, around) or 'no identity'}")
    parts += [f"then {_layers(found, block.after_sum, around)}"] if block.after_sum else []
    yield f"{indent}block {block.name} (m {block.m}): {' '.join(parts)}"
    for inner in block.inner:
        yield from _of_block(found, inner, indent + "  ")


def _layers(found: nl.ResidualMap, layers: Iterable[Layer], around: str = "") -> str:
    """The layers in execution order, each with a mark of its kind."""
    words = []
    for layer in layers:
        path = layer.path.removeprefix(around) if around and layer.path.startswith(f"{around}.") else layer.path
        word = MARKS.get(layer.kind, "") + (path or "the network")
        word += f"γ{found.norms[layer.path]}" if layer.kind == "norm" else ""
        words.append(f"({word})" if layer.gating else word)
    return " ".join(words)


def _of_groups(model: nn.Module, found: nl.ResidualMap) -> Iterator[str]:
    """The groups of parameters by their roles."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in nl.param_groups(model, lr=0.1, weight_decay=0.1, residual_map=found):
        kind = "decayed" if group["weight_decay"] else "not decayed"
        yield f"group {group['name']}, {kind}: {braced(names[id(parameter)] for parameter in group['params'])}"


def _of_plan(net: nn.Module) -> Iterator[str]:
    """The changes of a conversion: edit and change, and the paths of all that have it."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for change in net.normless.plan:
        what = re.sub(r"× [\d.e+-]+", "× …", change.what) if "KeepScale" in change.edit else change.what
        grouped[f"{change.edit}: {without_numbers(what)}"].append(change.path or "the network")
    yield from (f"{what}: {braced(paths)}" for what, paths in grouped.items())


def _of_changes(model: nn.Module, net: nn.Module) -> Iterator[str]:
    """Which modules and parameters differ, and how."""
    grouped: dict[str, list[str]] = defaultdict(list)
    old, new = (dict(one.named_modules()) for one in (model, net))
    for path in [*old, *(path for path in new if path not in old)]:
        before, after = (type(one[path]).__name__ if path in one else "nothing" for one in (old, new))
        if before != after:
            grouped[f"{before} → {after}"].append(path or "the network")
    first, second = model.state_dict(), net.state_dict()
    for name, value in first.items():
        if name not in second:
            gone = type(new.get(name.rpartition(".")[0])).__name__ in ("Identity", "NoneType")
            grouped["removed"] += [] if gone else [name]
        elif how := _difference(value, second[name]):
            grouped[how].append(name)
    for name, value in second.items():
        if name not in first:
            grouped[f"added {'×'.join(map(str, value.shape)) or 'a number'}"].append(name)
    yield from (f"{what}: {braced(paths)}" for what, paths in grouped.items() if paths)


def _difference(before: Tensor, after: Tensor) -> str:
    if before.shape != after.shape:
        return "of another shape"
    if torch.equal(before.nan_to_num(), after.nan_to_num()):
        return ""
    if not after.any():
        return "zero"
    ratio = (after * before).sum() / before.square().sum()
    return "scaled" if torch.allclose(after, ratio * before, rtol=1e-3, atol=1e-6) else "other values"


def without_numbers(text: str) -> str:
    """A sentence without numbers of several digits and without the folders of this machine."""
    text = re.sub(r"[^\s(]*/(site-packages|tests)/", "", " ".join(text.split()))
    return re.sub(r"\d\.\d{3,}(e[+-]?\d+)?|line \d+", "…", text)


def braced(paths: Iterable[str]) -> str:
    """Paths that differ in one number alone, together."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in dict.fromkeys(paths):
        match = re.search(r"(?<![^.])\d+(?![^.])", path)
        key = (path[: match.start()], path[match.end() :]) if match else (path, "")
        groups[key].append(match[0] if match else "")
    return " ".join(
        f"{head}{'{' + ','.join(numbers) + '}' if len(numbers) > 1 else numbers[0]}{tail}"
        for (head, tail), numbers in groups.items()
    )


def read(kind: str) -> dict[str, str]:
    """The committed snapshots of a kind, by row."""
    path = FOLDER / f"{kind}.txt"
    parts = path.read_text(encoding="utf-8").split("\n== ")[1:] if path.exists() else []
    return {name: text.strip("\n") + "\n" for name, _, text in (part.partition("\n") for part in parts)}


def write(kind: str, texts: dict[str, str]) -> None:
    """Write the snapshots of a kind."""
    FOLDER.mkdir(exist_ok=True)
    header = (
        f"Maps, plans and changes of the rows of {kind}.py; written by `make goldens`, read as goldens.py says.\n"
    )
    parts = [f"\n== {name}\n{text}" for name, text in texts.items()]
    (FOLDER / f"{kind}.txt").write_text(header + "".join(parts), encoding="utf-8")


def of_row(row: Row) -> str:
    """The snapshot of a row."""
    inputs, kwargs = row.example()
    found = nl.residual_map(row.network(), *inputs, **kwargs)
    return snapshot(
        row, found, lambda scheme: nl.convert(row.network(), scheme, *inputs, residual_map=found, **kwargs)
    )


def main(names: list[str]) -> None:
    """Rewrite the snapshots of the rows or kinds that are named, or of all but those of the zoo."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for row in ROWS.values():
        if row.size == "zoo":
            continue
        known = read(row.kind)
        asked = not names or row.name in names or row.kind in names or row.name not in known
        kinds[row.kind][row.name] = of_row(row) if asked else known[row.name]
    for kind, texts in kinds.items():
        write(kind, texts)


if __name__ == "__main__":
    import logging
    import warnings

    import gallery  # noqa: F401 - all rows

    logging.disable()
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
