"""The pieces of a drawn network: blocks and stretches of trunk with their marks and wires, one unit per layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile

from normless.residual import Layer, ResidualBlock, Role

Point = tuple[float, float]

LONGEST_CHAIN = 40
GATE_DROP = 0.75
ARC_STEP = 0.75
# Units that a letter of a name takes, and those between pieces.
LETTER = 0.43
GAP = 0.6


@dataclass(frozen=True)
class Mark:
    """What is at a place: a layer by its kind, a norm by the role of its γ, or the `sum` of a block."""

    x: float
    y: float
    what: str


@dataclass(frozen=True)
class Wire:
    """A line with rounded corners: a `branch`, or a skip path: `identity`, `projection` or `no weights`."""

    points: tuple[Point, ...]
    what: str


@dataclass(frozen=True)
class Note:
    """A text centred at a place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Piece:
    """A part of the network that is drawn in one place: `width` units of trunk from (x, y) on.

    `name` is written under it, `above` and `below` are how far it reaches. `starts_stage` marks one that starts
    a row where there is room, `boxed` one with a background. `blocks` is how many blocks it stands for.
    """

    width: float
    marks: tuple[Mark, ...] = ()
    wires: tuple[Wire, ...] = ()
    notes: tuple[Note, ...] = ()
    name: str = ""
    above: float = 0.6
    below: float = 0.6
    starts_stage: bool = False
    boxed: bool = False
    blocks: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def letters(self) -> int:
        """How long a name under the piece may be and leave a letter's place before the next."""
        return int((self.width + GAP) / LETTER) - 1

    def moved(self, x: float, y: float) -> Piece:
        """The piece elsewhere."""
        return replace(
            self,
            x=self.x + x,
            y=self.y + y,
            marks=tuple(Mark(mark.x + x, mark.y + y, mark.what) for mark in self.marks),
            wires=tuple(Wire(tuple((px + x, py + y) for px, py in wire.points), wire.what) for wire in self.wires),
            notes=tuple(Note(note.x + x, note.y + y, note.text) for note in self.notes),
        )


@dataclass
class _Chain:
    """Layers in sequence at height `y`: what is drawn, where each layer is, where it splits off and ends."""

    y: float
    split: float
    end: float
    marks: list[Mark] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
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
    marks, wires, notes = tuple(chain.marks), tuple(chain.wires), tuple(chain.notes)
    return Piece(width, marks, wires, notes, name=name, below=0.6 - chain.lowest)


def gap_piece(text: str, blocks: int = 0) -> Piece:
    """A break of the trunk, and in words how many blocks are not drawn there."""
    width = LETTER * len(text)
    return Piece(width, notes=(Note(width / 2, 0.0, "⋯"),), name=text, blocks=blocks)


def block_piece(block: ResidualBlock, roles: dict[str, Role]) -> Piece:
    """One block: what it shares, the fork, its branches, the arc of its skip path, the sum and what follows it."""
    depth = _nesting(block)
    shared = _chain(block.shared_layers, roles, 0.0, 0.0)
    fork = shared.end + 0.4
    chains = _branches(block, roles, fork, ARC_STEP * depth)
    total = max(*(chain.end for chain in chains), fork + len(block.skip_layers) + 1.0) + 0.4
    after = _chain(block.after_sum, roles, total + 0.3, 0.0)
    height = 0.95 + ARC_STEP * depth
    places = {layer: place for chain in chains for layer, place in chain.places.items()}
    inner = list(_inner_arcs(block, roles, places, depth))
    every = [shared, *chains, after]
    marks = [mark for chain in every for mark in chain.marks]
    marks += [Mark(total, 0.0, "sum"), *_on_arc(block, roles, (fork + total) / 2, height)]
    marks += [mark for _, on_arc in inner for mark in on_arc]
    wires = [_arc(fork, total, 0.0, height, _skip_kind(block)), *(arc for arc, _ in inner)]
    wires += [wire for chain in every for wire in chain.wires]
    wires += [_arc(chain.split, total, 0.0, chain.y, "branch") for chain in chains if chain.y]
    return Piece(
        width=max(after.end, total + 0.5) + 0.2,
        marks=tuple(marks),
        wires=tuple(wires),
        notes=tuple(note for chain in every for note in chain.notes),
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
    together = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*branches, strict=False)))
    chains = [_chain(branches[0][:together], roles, fork + 0.3, 0.0)]
    split = chains[0].end - 0.1 if together else fork
    y = 0.0
    for branch in branches:
        chains.append(_chain(branch[together:], roles, split + 0.3, y, split))
        y = min(chain.lowest for chain in chains) - 1.1 - room
    return chains


def _mark_of(layer: Layer, roles: dict[str, Role]) -> str:
    """What a layer's mark stands for: a norm by the role of its γ, any other by its kind."""
    if layer.kind != "norm":
        return layer.kind
    return "norm without γ" if layer.gamma is None else f"γ {roles[layer.path]}"


def _chain(layers: Sequence[Layer], roles: dict[str, Role], x: float, y: float, split: float = 0.0) -> _Chain:
    """One unit per layer from `x` on, gates hanging below; the middle of a very long chain is a number."""
    hidden = len(layers) - LONGEST_CHAIN
    if hidden > 1:
        half = LONGEST_CHAIN // 2
        first = _chain(layers[:half], roles, x, y)
        last = _chain(layers[-half:], roles, first.end + 3, y)
        note = Note(first.end + 1.5, y, f"⋯ {hidden} ⋯")
        marks, wires = first.marks + last.marks, first.wires + last.wires
        return _Chain(y, split, last.end, marks, wires, [note], first.places | last.places)
    chain = _Chain(y, split, end=x)
    for gating, run in groupby(layers, key=lambda layer: layer.gating):
        start, drop = chain.end, GATE_DROP * gating
        for layer in run:
            chain.marks.append(Mark(chain.end + 0.5, y - drop, _mark_of(layer, roles)))
            chain.places[layer] = (chain.end + 0.5, y)
            chain.end += 1
        if gating:
            chain.wires.append(_arc(start + 0.1, chain.end - 0.1, y, y - drop, "branch"))
    return chain


def _arc(x0: float, x1: float, base: float, height: float, what: str) -> Wire:
    return Wire(((x0, base), (x0, height), (x1, height), (x1, base)), what)


def _skip_kind(block: ResidualBlock) -> str:
    if block.identity_skip:
        return "identity"
    return "projection" if block.skip else "no weights"


def _on_arc(block: ResidualBlock, roles: dict[str, Role], middle: float, height: float) -> Iterator[Mark]:
    """The layers of the skip path, on its arc."""
    start = middle - (len(block.skip_layers) - 1) / 2
    for index, layer in enumerate(block.skip_layers):
        yield Mark(start + index, height, _mark_of(layer, roles))


def _inner_arcs(
    block: ResidualBlock, roles: dict[str, Role], places: dict[Layer, Point], depth: int
) -> Iterator[tuple[Wire, list[Mark]]]:
    """The skip paths of the blocks inside a branch, the innermost lowest; of those whose layers are drawn."""
    for inner in block.inner:
        points = [places[layer] for layer in inner.branch_layers if layer in places]
        if points:
            (x0, y), (x1, _) = min(points), max(points)
            height = y + ARC_STEP * depth
            arc = _arc(x0 - 0.45, x1 + 0.45, y, height, _skip_kind(inner))
            yield arc, list(_on_arc(inner, roles, (x0 + x1) / 2, height))
        yield from _inner_arcs(inner, roles, places, depth - 1)


def _nesting(block: ResidualBlock) -> int:
    """How many blocks deep the branch is nested."""
    return max((1 + _nesting(inner) for inner in block.inner), default=0)
