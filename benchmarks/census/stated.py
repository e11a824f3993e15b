"""What people have read in the source of networks, before they looked at a map, and where a map differs from it.

`stated/PACKAGE.yaml` lists networks with their `blocks` in execution order, by their weight layers: `branch` (with
gates), or `branches` of one sum, and `skip`. A block with `inner` blocks need not repeat their layers. Compared where
stated: `gates`, the norms `last` and `down`, the number of `norms`, and `without`, the layers in no block, stem or
classifier. A list of layers has texts, `PREFIX: A B` for PREFIX.A and PREFIX.B. A block or a list with `each` stands
for the product of ranges and lists, whose values are filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from normless.residual import ResidualBlock, ResidualMap

STATEMENTS = Path(__file__).with_name("stated")


class Block(NamedTuple):
    """A block by the weight layers of its branches, those of inner blocks left out; `depth` blocks are around it."""

    branches: tuple[tuple[str, ...], ...]
    skip: tuple[str, ...]
    gates: tuple[str, ...] | None
    depth: int
    norms: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        return f"the block {' + '.join(map(_told, self.branches))}"


@cache
def statements(package: str) -> dict[str, dict[str, Any]]:
    """The statements of a package by the text of the network."""
    import yaml

    path = STATEMENTS / f"{package}.yaml"
    return {one["network"]: one for one in yaml.safe_load(path.read_text())} if path.exists() else {}


def differences(statement: Mapping[str, Any], mapped: ResidualMap | None) -> list[str]:
    """A sentence for everything in which a map is not as stated; one for a network without a map."""
    if mapped is None:
        return ["the network was not mapped"]
    stated = list(_stated(statement["blocks"], {}, 0))
    wrong = _of_blocks(stated, list(_mapped(mapped.blocks, 0)))
    stem, classifier = (set(_paths(statement.get(key, []), {})) for key in ("stem", "classifier"))
    if stem != set(mapped.stem):
        wrong.append(f"the stem is {_told(mapped.stem)}, stated {_told(stem)}")
    if (mapped.classifier not in classifier) if classifier else mapped.classifier is not None:
        wrong.append(f"the classifier is {mapped.classifier}, stated {_told(classifier)}")
    layers = mapped.stem_layers + mapped.trunk_layers + mapped.head_layers
    others = {layer.path for layer in layers if layer.kind == "weight"} - stem - classifier
    without = set(_paths(statement["without"], {})) if "without" in statement else others
    if others != without:
        more, less = _told(others - without), _told(without - others)
        wrong.append(f"in no block, stem or classifier are {more}, which is not stated, and not {less}")
    if statement.get("norms", len(mapped.norms)) != len(mapped.norms):
        wrong.append(f"{len(mapped.norms)} norms, stated {statement['norms']}")
    for path, role in {
        path: role for block in stated for role, paths in block.norms.items() for path in paths
    }.items():
        if mapped.norms.get(path) != role:
            wrong.append(f"the norm {path} has the role {mapped.norms.get(path)}, stated {role}")
    return wrong


def _of_blocks(stated: Sequence[Block], mapped: Sequence[Block]) -> list[str]:
    """Blocks are the same if their branches are; then their skip paths, gates and nesting are compared."""
    wrong, left, last = [], list(enumerate(mapped)), -1
    for block in stated:
        match = next((pair for pair in left if pair[1].branches == block.branches), None)
        if match is None:
            wrong.append(f"{block} is stated, not mapped")
            continue
        left.remove(match)
        number, other = match
        if number < last:
            wrong.append(f"{block} is in another place")
        last = max(last, number)
        if other.skip != block.skip:
            wrong.append(f"{block} has the skip path {_told(other.skip)}, stated {_told(block.skip)}")
        if block.gates not in (None, other.gates):
            wrong.append(f"{block} has the gates {_told(other.gates or ())}, stated {_told(block.gates or ())}")
        if other.depth != block.depth:
            wrong.append(f"{block} is inside {other.depth} others, stated {block.depth}")
    return wrong + [f"{block} is mapped, not stated" for _, block in left]


def _stated(blocks: Sequence[Mapping[str, Any]], names: Mapping[str, Any], depth: int) -> Iterator[Block]:
    """The blocks of a statement, each before its inner ones."""
    for block in blocks:
        for filled in _each(block, names):
            inner = list(_stated(block.get("inner", []), filled, depth + 1))
            inside = {path for one in inner for branch in (*one.branches, one.skip) for path in branch}
            whole = [_paths(branch, filled) for branch in block.get("branches") or [block["branch"]]]
            gates = _paths(block["gates"], filled) if "gates" in block else None
            norms = {role: _paths(block.get(role, []), filled) for role in ("last", "down")}
            yield Block(_without(whole, inside), _paths(block.get("skip", []), filled), gates, depth, norms)
            yield from inner


def _mapped(blocks: Sequence[ResidualBlock], depth: int) -> Iterator[Block]:
    """The blocks of a map, each before its inner ones."""
    for block in blocks:
        inside = {path for inner in block.inner for path in (*inner.branch, *inner.skip)}
        gates = tuple(dict.fromkeys(path for path in block.gates if path in block.branch))
        whole = [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches]
        yield Block(_without(whole, inside), tuple(dict.fromkeys(block.skip)), gates, depth, {})
        yield from _mapped(block.inner, depth + 1)


def _without(branches: Sequence[Sequence[str]], inside: set[str]) -> tuple[tuple[str, ...], ...]:
    """Each layer of a branch once, without those of inner blocks."""
    return tuple(tuple(path for path in dict.fromkeys(branch) if path not in inside) for branch in branches)


def _each(item: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The values to fill in: one choice of each range or list after another, the last varying fastest."""
    choices = {name: _choices(values) for name, values in item.get("each", {}).items()}
    for chosen in product(*choices.values()):
        yield {**names, **dict(zip(choices, chosen, strict=True))}


def _choices(values: Any) -> Sequence[Any]:
    if isinstance(values, list):
        return values
    first, _, last = str(values).partition("-")
    return range(int(first), int(last) + 1)


def _paths(items: Sequence[Any], names: Mapping[str, Any]) -> tuple[str, ...]:
    paths: list[str] = []
    for item in items:
        if isinstance(item, Mapping):
            paths += [path for filled in _each(item, names) for path in _paths(item["layers"], filled)]
        else:
            prefix, colon, rest = str(item).format(**names).rpartition(": ")
            paths += [f"{prefix}.{name}" if colon else name for name in rest.split()]
    return tuple(dict.fromkeys(paths))


def _told(paths: Iterable[str]) -> str:
    return f"[{', '.join(sorted(paths) if isinstance(paths, set) else paths)}]"
