"""The layout of a drawn network: blocks and stretches of trunk, one unit per layer, in rows; long runs are folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from typing import NamedTuple

from normless.residual import Layer, ResidualBlock, ResidualMap, Role

Point = tuple[float, float]

LONGEST_CHAIN = 40
MOST_BLOCKS = 36
LONGEST_PERIOD = 6
ROW = 68.0
GATE_DROP = 0.75
ARC_STEP = 0.75
# Units that a letter of a name takes, and those between pieces.
LETTER = 0.43
GAP = 0.6


class Mark(NamedTuple):
    """A layer by its kind, a norm by the role of its γ, the `_sum` of a block, or a text, centred at (x, y)."""

    x: float
    y: float
    what: str


class Wire(NamedTuple):
    """A line with rounded corners: a `_branch`, or a kind of skip path."""

    points: tuple[Point, ...]
    what: str


@dataclass(frozen=True)
class Piece:
    """A part of the network that is drawn in one place: `width` units of trunk from (0, 0) on.

    `name` is written under it, `above` and `below` are how far it reaches. `starts_stage` marks one that starts
    a row where there is room, `boxed` one with a background. `blocks` is how many blocks it stands for.
    """

    width: float
    marks: tuple[Mark, ...] = ()
    wires: tuple[Wire, ...] = ()
    name: str = ""
    above: float = 0.6
    below: float = 0.6
    starts_stage: bool = False
    boxed: bool = False
    blocks: int = 0

    @property
    def letters(self) -> int:
        """The largest length of a name under the piece that leaves space for a letter before the next name."""
        return int((self.width + GAP) / LETTER) - 1


@dataclass
class _Chain:
    """Layers in sequence at height `y`: their marks and places, and where the sequence splits off and ends."""

    y: float
    split: float
    end: float
    marks: list[Mark] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    places: dict[Layer, Point] = field(default_factory=dict)

    @property
    def lowest(self) -> float:
        """The height of its lowest mark."""
        return min([self.y, *(mark.y for mark in self.marks)])


def chain_piece(layers: Sequence[Layer], roles: dict[str, Role], name: str) -> Piece:
    """Layers on the trunk itself: the stem, the head, what lies between blocks."""
    length = _chain(layers, roles, 0.0, 0.0).end
    width = max(length, LETTER * len(name))
    chain = _chain(layers, roles, (width - length) / 2, 0.0)
    return Piece(width, tuple(chain.marks), tuple(chain.wires), name, below=0.6 - chain.lowest)


def gap_piece(text: str, blocks: int = 0) -> Piece:
    """A break of the trunk, and in words how many blocks are not drawn there."""
    width = LETTER * len(text)
    return Piece(width, (Mark(width / 2, 0.0, "⋯"),), name=text, blocks=blocks)


def block_piece(block: ResidualBlock, roles: dict[str, Role]) -> Piece:
    """Return one block: shared layers, the fork, its branches, the arc of its skip path, the sum and later layers."""
    depth = _nesting(block)
    shared = _chain(block.shared_layers, roles, 0.0, 0.0)
    fork = shared.end + 0.4
    chains = _branches(block, roles, fork, ARC_STEP * depth)
    total = max(*(chain.end for chain in chains), fork + len(block.skip_layers) + 1.0) + 0.4
    after = _chain(block.after_sum, roles, total + 0.3, 0.0)
    height = 0.95 + ARC_STEP * depth
    places = {layer: place for chain in chains for layer, place in chain.places.items()}
    every = [shared, *chains, after]
    arcs = [_skip(block, roles, fork, total, 0.0, height), *_inner_arcs(block, roles, places, depth)]
    marks = [*(mark for chain in every for mark in chain.marks), Mark(total, 0.0, "_sum")]
    wires = [*(arc for arc, _ in arcs), *(wire for chain in every for wire in chain.wires)]
    wires += [_arc(chain.split, total, 0.0, chain.y, "_branch") for chain in chains if chain.y]
    return Piece(
        width=max(after.end, total + 0.5) + 0.2,
        marks=(*marks, *(mark for _, on_arc in arcs for mark in on_arc)),
        wires=tuple(wires),
        name=block.name,
        above=height + 0.6,
        below=0.6 - min(0.0, *(chain.lowest for chain in chains)),
        starts_stage=not block.identity_skip,
        boxed=True,
        blocks=1,
    )


def _branches(block: ResidualBlock, roles: dict[str, Role], fork: float, room: float) -> list[_Chain]:
    """The branches of a block below each other, and first what they begin with together; `room` is for inner arcs."""
    on_arcs = {layer for inner in block.inner for each in inner.walk() for layer in each.skip_layers}
    branches = [[layer for layer in branch if layer not in on_arcs] for branch in block.branches]
    if len(branches) == 1:
        return [_chain(branches[0], roles, fork + 0.3, 0.0)]
    together = _shared(branches)
    chains = [_chain(branches[0][:together], roles, fork + 0.3, 0.0)]
    split = chains[0].end - 0.1 if together else fork
    y = 0.0
    for branch in branches:
        chains.append(_chain(branch[together:], roles, split + 0.3, y, split))
        y = min(chain.lowest for chain in chains) - 1.1 - room
    return chains


def _shared(sequences: Sequence[Sequence[object]]) -> int:
    """Return the number of items with which all the sequences begin."""
    return sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*sequences, strict=False)))


def _mark_of(layer: Layer, roles: dict[str, Role]) -> str:
    """Return the kind of a layer's mark: the role of γ for a norm, else the kind of layer."""
    if layer.kind != "norm":
        return "weight layer" if layer.kind == "weight" else layer.kind
    return "norm without γ" if layer.gamma is None else f"γ {roles[layer.path]}"


def _chain(layers: Sequence[Layer], roles: dict[str, Role], x: float, y: float, split: float = 0.0) -> _Chain:
    """One unit per layer from `x` on, gates hanging below; the middle of a very long chain is a number."""
    hidden = len(layers) - LONGEST_CHAIN
    if hidden > 1:
        half = LONGEST_CHAIN // 2
        first = _chain(layers[:half], roles, x, y)
        last = _chain(layers[-half:], roles, first.end + 3, y)
        note = Mark(first.end + 1.5, y, f"⋯ {hidden} ⋯")
        marks = [*first.marks, note, *last.marks]
        return _Chain(y, split, last.end, marks, first.wires + last.wires, first.places | last.places)
    chain = _Chain(y, split, end=x)
    for gating, run in groupby(layers, key=lambda layer: layer.gating):
        start, drop = chain.end, GATE_DROP * gating
        for layer in run:
            chain.marks.append(Mark(chain.end + 0.5, y - drop, _mark_of(layer, roles)))
            chain.places[layer] = (chain.end + 0.5, y)
            chain.end += 1
        if gating:
            chain.wires.append(_arc(start + 0.1, chain.end - 0.1, y, y - drop, "_branch"))
    return chain


def _arc(x0: float, x1: float, base: float, height: float, what: str) -> Wire:
    return Wire(((x0, base), (x0, height), (x1, height), (x1, base)), what)


def _skip(
    block: ResidualBlock, roles: dict[str, Role], x0: float, x1: float, base: float, height: float
) -> tuple[Wire, list[Mark]]:
    """The arc of a skip path, and its layers on it."""
    changed = "projecting skip path" if block.skip else "skip path without weights"
    kind = "identity skip path" if block.identity_skip else changed
    start = (x0 + x1 - len(block.skip_layers) + 1) / 2
    marks = [Mark(start + index, height, _mark_of(layer, roles)) for index, layer in enumerate(block.skip_layers)]
    return _arc(x0, x1, base, height, kind), marks


def _inner_arcs(
    block: ResidualBlock, roles: dict[str, Role], places: dict[Layer, Point], depth: int
) -> Iterator[tuple[Wire, list[Mark]]]:
    """Return the skip paths of the drawn blocks inside a branch, the innermost lowest."""
    for inner in block.inner:
        points = [places[layer] for layer in inner.branch_layers if layer in places]
        if points:
            (x0, y), (x1, _) = min(points), max(points)
            yield _skip(inner, roles, x0 - 0.45, x1 + 0.45, y, y + ARC_STEP * depth)
        yield from _inner_arcs(inner, roles, places, depth - 1)


def _nesting(block: ResidualBlock) -> int:
    """Return the nesting depth of the branch in blocks."""
    return max((1 + _nesting(inner) for inner in block.inner), default=0)


@dataclass(frozen=True)
class Drawing:
    """Each piece and its place, both ends of the trunk of each row, and the extent; y falls from row to row."""

    pieces: tuple[tuple[Piece, Point], ...]
    trunks: tuple[tuple[Point, Point], ...]
    width: float
    height: float


def arranged(residual_map: ResidualMap) -> Drawing:
    """The drawing of a network."""
    pieces: list[tuple[Piece, Point]] = []
    trunks = []
    top = 0.0
    rows = _in_rows(_pieces(residual_map))
    for row in rows:
        x, y = 0.0, top - max(piece.above for piece in row)
        for piece in row:
            pieces.append((piece, (x, y)))
            x += piece.width + GAP
        trunks.append(((-GAP, y), (x if row is not rows[-1] else x - GAP, y)))
        # One unit for the names.
        top = y - max(piece.below for piece in row) - 1.0
    return Drawing(tuple(pieces), tuple(trunks), max(x for _, (x, _) in trunks), -top)


def _pieces(residual_map: ResidualMap) -> list[Piece]:
    """The network from stem to head in pieces, runs of blocks of one form folded where there are too many."""
    roles = residual_map.norms
    blocks = _shortly_named([block_piece(block, roles) for block in residual_map.blocks])
    if len(blocks) > MOST_BLOCKS:
        blocks = list(_folded(blocks))
    if len(blocks) > MOST_BLOCKS:
        half = MOST_BLOCKS // 2
        hidden = sum(piece.blocks for piece in blocks[half:-half])
        blocks = [*blocks[:half], gap_piece(f"{hidden} more left out", hidden), *blocks[-half:]]
    ends = ((residual_map.trunk_layers, "between blocks"), (residual_map.head_layers, "head"))
    stem = "stem" if residual_map.blocks else "layers"
    pieces = [
        *([chain_piece(residual_map.stem_layers, roles, stem)] if residual_map.stem_layers else []),
        *blocks,
        *(chain_piece(layers, roles, name) for layers, name in ends if layers),
    ]
    return pieces or [gap_piece("no layers")]


def _shortly_named(blocks: list[Piece]) -> list[Piece]:
    """Return the blocks without the common prefix of their names, if a name does not fit with it."""
    if all(len(block.name) <= block.letters for block in blocks) or len(blocks) < 2:
        return blocks
    shared = _shared([block.name.split(".")[:-1] for block in blocks])
    return [replace(block, name=".".join(block.name.split(".")[shared:])) for block in blocks]


def _folded(blocks: Sequence[Piece]) -> Iterator[Piece]:
    """The blocks with each run of one form, or of several in turn, cut to the first of each and a count."""
    forms = [replace(block, name="") for block in blocks]
    start = 0
    while start < len(blocks):
        period, length = max(
            ((period, _run_length(forms, start, period)) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda run: (run[1], -run[0]),
        )
        if length < 3 * period:
            yield blocks[start]
            start += 1
            continue
        yield from blocks[start : start + period]
        same = "like it" if period == 1 else f"like these {period}"
        yield gap_piece(f"{length - period} more {same}", length - period)
        start += length


def _run_length(forms: Sequence[Piece], start: int, period: int) -> int:
    """Return the number of blocks from `start` on that repeat the first `period` blocks, in whole periods."""
    end = start + period
    while end < len(forms) and forms[end] == forms[end - period]:
        end += 1
    return (end - start) // period * period


def _in_rows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in rows of about equal length; a new stage starts a new row where that wastes no more than half."""
    rows: list[list[Piece]] = [[]]
    length = 0.0
    for piece in pieces:
        if rows[-1] and (length + piece.width > ROW or (piece.starts_stage and length > 0.5 * ROW)):
            rows.append([])
            length = 0.0
        rows[-1].append(piece)
        length += piece.width + GAP
    return rows
