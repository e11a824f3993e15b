"""A network drawn as blocks on a trunk, its γ coloured by role; long runs of blocks are folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from math import ceil
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from normless.residual import Layer, ResidualBlock, ResidualMap, Role
from normless_lab.plots._frame import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless_lab.plots._palette import GRID, PAPER, QUIET, ROLE_INKS, SCHEME_INKS, TEXT

Position = tuple[float, float]

LONGEST_CHAIN = 40
MOST_BLOCKS = 36
LONGEST_PERIOD = 6
ROW = 68.0
GATE_DROP = 0.75
ARC_STEP = 0.75
# The units of a letter of a name, and those between pieces.
LETTER = 0.43
GAP = 0.6


class Mark(NamedTuple):
    """A layer by its kind, a norm by the role of its γ, the `_sum` of a block, or a text, centred at (x, y)."""

    x: float
    y: float
    what: str


class Wire(NamedTuple):
    """A line with corners: a `_branch`, or a kind of skip path."""

    points: tuple[Position, ...]
    what: str


@dataclass(frozen=True)
class Piece:
    """A part of the network that is drawn in one place: `width` units of trunk from (0, 0) on.

    `name` is written under it, `above` and `below` are its extent. A piece that `starts_stage` starts a row if there
    is room, a `boxed` one has a background. `blocks` is the number of blocks that it stands for.
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
    def shown_name(self) -> str:
        """The name, without its middle if it would reach the next name."""
        room = max(int((self.width + GAP) / LETTER) - 2, 2)
        name = self.name
        return name if len(name) <= room + 1 else f"{name[: room - room // 2]}…{name[len(name) - room // 2 :]}"


@dataclass
class _Sketch:
    """The marks and wires of a piece while it is laid out, and the places of its layers on their chains."""

    roles: dict[str, Role]
    marks: list[Mark] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    places: dict[Layer, Position] = field(default_factory=dict)

    @property
    def lowest(self) -> float:
        """The height of the lowest mark, at most 0."""
        return min([0.0, *(mark.y for mark in self.marks)])

    def mark(self, layer: Layer, x: float, y: float) -> None:
        """Add the mark of a layer: its kind, or the role of γ of a norm."""
        what: str = "weight layer" if layer.kind == "weight" else layer.kind
        if layer.kind == "norm":
            what = "norm without γ" if layer.gamma is None else f"γ {self.roles[layer.path]}"
        self.marks.append(Mark(x, y, what))

    def chain(self, layers: Sequence[Layer], x: float, y: float = 0.0) -> float:
        """Add one unit per layer from `x` on, gates below, a long middle as a number; return the end."""
        hidden = len(layers) - LONGEST_CHAIN
        if hidden > 1:
            half = LONGEST_CHAIN // 2
            end = self.chain(layers[:half], x, y)
            self.marks.append(Mark(end + 1.5, y, f"⋯ {hidden} ⋯"))
            return self.chain(layers[-half:], end + 3, y)
        for gating, run in groupby(layers, key=lambda layer: layer.gating):
            start, height = x, y - GATE_DROP * gating
            for layer in run:
                self.mark(layer, x + 0.5, height)
                self.places[layer] = (x + 0.5, y)
                x += 1
            if gating:
                self.arc(start + 0.1, x - 0.1, y, height, "_branch")
        return x

    def arc(self, x0: float, x1: float, base: float, height: float, what: str) -> None:
        """Add a wire from (x0, base) to (x1, base) at a height."""
        self.wires.append(Wire(((x0, base), (x0, height), (x1, height), (x1, base)), what))

    def skip(self, block: ResidualBlock, x0: float, x1: float, base: float, height: float) -> None:
        """Add the arc of a skip path, and its layers on it."""
        changed = "projecting skip path" if block.skip else "skip path without weights"
        self.arc(x0, x1, base, height, "identity skip path" if block.identity_skip else changed)
        start = (x0 + x1 - len(block.skip_layers) + 1) / 2
        for index, layer in enumerate(block.skip_layers):
            self.mark(layer, start + index, height)

    def inner_skips(self, block: ResidualBlock, depth: int) -> None:
        """Add the skip paths of the drawn blocks inside a branch, the innermost lowest."""
        for inner in block.inner:
            points = [self.places[layer] for layer in inner.branch_layers if layer in self.places]
            if points:
                (x0, y), (x1, _) = min(points), max(points)
                self.skip(inner, x0 - 0.45, x1 + 0.45, y, y + ARC_STEP * depth)
            self.inner_skips(inner, depth - 1)

    def branches(self, block: ResidualBlock, fork: float, room: float) -> list[tuple[float, float, float]]:
        """Add the branches of a block below each other, after the layers that they share; `room` is for inner arcs.

        Return the place where each splits off, its end and its height.
        """
        on_arcs = {layer for inner in block.inner for each in inner.walk() for layer in each.skip_layers}
        branches = [[layer for layer in branch if layer not in on_arcs] for branch in block.branches]
        shared = _shared(branches) if len(branches) > 1 else 0
        split = self.chain(branches[0][:shared], fork + 0.3) - 0.1 if shared else fork
        ends, y = [], 0.0
        for branch in branches:
            known = len(self.marks)
            ends.append((split, self.chain(branch[shared:], split + 0.3, y), y))
            y = min([y, *(mark.y for mark in self.marks[known:])]) - 1.1 - room
        return ends

    def piece(self, width: float, name: str, **extent: float | bool) -> Piece:
        """Return the piece with these marks and wires."""
        return Piece(width, tuple(self.marks), tuple(self.wires), name, below=0.6 - self.lowest, **extent)  # type: ignore[arg-type]


def chain_piece(layers: Sequence[Layer], roles: dict[str, Role], name: str) -> Piece:
    """Return layers on the trunk itself: the stem, the head, layers between blocks."""
    length = _Sketch(roles).chain(layers, 0.0)
    width, sketch = max(length, LETTER * len(name)), _Sketch(roles)
    sketch.chain(layers, (width - length) / 2)
    return sketch.piece(width, name)


def gap_piece(text: str, blocks: int = 0) -> Piece:
    """Return a break of the trunk, with the number of blocks that are not drawn there in words."""
    width = LETTER * len(text)
    return Piece(width, (Mark(width / 2, 0.0, "⋯"),), name=text, blocks=blocks)


def block_piece(block: ResidualBlock, roles: dict[str, Role]) -> Piece:
    """Return one block: shared layers, the fork, its branches, the arc of its skip path, the sum and later layers."""
    sketch, depth = _Sketch(roles), _nesting(block)
    fork = sketch.chain(block.shared_layers, 0.0) + 0.4
    branches = sketch.branches(block, fork, ARC_STEP * depth)
    total = max(*(end for _, end, _ in branches), fork + len(block.skip_layers) + 1.0) + 0.4
    height = 0.95 + ARC_STEP * depth
    sketch.skip(block, fork, total, 0.0, height)
    sketch.inner_skips(block, depth)
    for split, _, y in branches:
        if y:
            sketch.arc(split, total, 0.0, y, "_branch")
    sketch.marks.append(Mark(total, 0.0, "_sum"))
    width = max(sketch.chain(block.after_sum, total + 0.3), total + 0.5) + 0.2
    stage = not block.identity_skip
    return sketch.piece(width, block.name, above=height + 0.6, starts_stage=stage, boxed=True, blocks=1)


def _shared(sequences: Sequence[Sequence[object]]) -> int:
    """Return the number of items with which all the sequences begin."""
    return sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*sequences, strict=False)))


def _nesting(block: ResidualBlock) -> int:
    """Return the nesting depth of the branch in blocks."""
    return max((1 + _nesting(inner) for inner in block.inner), default=0)


@dataclass(frozen=True)
class Drawing:
    """Each piece and its place, both ends of the trunk of each row, and the extent; y falls from row to row."""

    pieces: tuple[tuple[Piece, Position], ...]
    trunks: tuple[tuple[Position, Position], ...]
    width: float
    height: float


def arranged(residual_map: ResidualMap) -> Drawing:
    """Return the drawing of a network."""
    pieces: list[tuple[Piece, Position]] = []
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
    """Return the network from stem to head in pieces; runs of blocks of one form are folded if there are too many."""
    roles = residual_map.norms
    blocks = [block_piece(block, roles) for block in residual_map.blocks]
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


def _folded(blocks: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the blocks with each run of one form, or of several in turn, cut to the first of each and a count."""
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
    """Return the pieces in rows of about equal length; a stage starts a new row if that wastes no more than half."""
    rows: list[list[Piece]] = [[]]
    length = 0.0
    for piece in pieces:
        if rows[-1] and (length + piece.width > ROW or (piece.starts_stage and length > 0.5 * ROW)):
            rows.append([])
            length = 0.0
        rows[-1].append(piece)
        length += piece.width + GAP
    return rows


# Inches per unit, so that a layer's mark of 6.5 points stands clear of the next.
UNIT = 0.14
# The units of a legend with four columns of its longest names.
NARROWEST = 60.0
LEGEND_COLUMNS = 4

TOGETHER: dict[str, Any] = {"linestyle": "none", "markersize": 6.5}
# By name in the legend, which leaves out names with an underscore.
MARKS: Mapping[str, dict[str, Any]] = {
    "weight layer": {"marker": "s", "color": TEXT.light, "markerfacecolor": PAPER.light},
    "activation": {"marker": ".", "color": TEXT.light},
    **{what: {"marker": ink.marker, "color": ink.light} for what, ink in ROLE_INKS.items()},
    "norm without γ": {"marker": "D", "color": QUIET.light, "markerfacecolor": PAPER.light},
    "scale": {"marker": "^", "color": TEXT.light, "markerfacecolor": PAPER.light},
    "dropout": {"marker": "x", "color": QUIET.light, "markersize": 4.5},
    "direction": {"marker": "d", "color": TEXT.light, "markerfacecolor": PAPER.light},
    "_sum": {"marker": "$\\oplus$", "color": TEXT.light, "markersize": 8, "markeredgewidth": 0},
}
WIRES: Mapping[str, dict[str, Any]] = {
    "identity skip path": {"color": TEXT.light, "linewidth": 1.0},
    "projecting skip path": {"color": SCHEME_INKS["none"].light, "linewidth": 1.8},
    "skip path without weights": {"color": TEXT.light, "linewidth": 1.0, "linestyle": (0, (3, 2))},
    "_branch": {"color": QUIET.light, "linewidth": 1.0},
}

BOX: dict[str, Any] = {
    "boxstyle": "round,pad=0,rounding_size=0.4", "facecolor": GRID.light, "edgecolor": "none", "alpha": 0.6,
}  # fmt: skip


def blocks_on_trunk(residual_map: ResidualMap, ax: Axes | None = None, *, title: str = "Residual structure") -> Axes:
    """Draw a network from stem to head: each block a box on the trunk, its skip path an arc above the branch.

    The arc of an identity is thin, that of a projection heavy with its layers on it, and that of a skip path which
    changes the activation without a weight dashed. Blocks inside a branch are smaller arcs within; layers that only
    compute a factor hang below their branch, and each further branch of a sum below the first. Layers between blocks
    that belong to no block follow the last one.

    In a network of more than 36 blocks, a run of blocks of one form, or of up to six forms in turn, is drawn once
    with the number of those that follow; if that is still too long, its middle is left out.

    Without `ax` the figure is as large as the drawing needs.
    """
    drawing = arranged(residual_map)
    legend = _legend(drawing)
    width = max(drawing.width, NARROWEST)
    # With room for the title and the lines of the legend.
    inches = drawing.height * UNIT + 0.65 + 0.22 * ceil(len(legend) / LEGEND_COLUMNS)
    axes = new_axes((width + 2) * UNIT, inches) if ax is None else style_axes(ax)
    axes.set_axis_off()
    axes.set_xlim(-1.0, width + 1.0)
    axes.set_ylim(-drawing.height, 0.0)
    # A line per row, with an arrow if the next row continues it.
    for (x0, y), (x1, _) in drawing.trunks:
        axes.plot([x0, x1], [y, y], color=QUIET.light, linewidth=1, zorder=1, label="_trunk")
    for _, (x, y) in drawing.trunks[:-1]:
        axes.plot([x], [y], linestyle="none", marker=">", markersize=4, color=QUIET.light, label="_goes on")
    places: dict[str, list[Position]] = {}
    for piece, (left, middle) in drawing.pieces:
        _draw_piece(axes, piece, (left, middle))
        for mark in piece.marks:
            places.setdefault(mark.what, []).append((left + mark.x, middle + mark.y))
    # One line object per kind of mark, with its name in the legend as its label.
    for what in filter(places.get, MARKS):
        xs, ys = zip(*places[what], strict=True)
        axes.plot(xs, ys, zorder=3, label=what, **TOGETHER | MARKS[what])
    name_axes(axes, title=title, across="", up=_summary(residual_map))
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL_FONT_SIZE, "labelcolor": TEXT.light}
    style |= {"ncols": LEGEND_COLUMNS, "columnspacing": 1.2, "handletextpad": 0.4}
    axes.legend(handles=legend, loc="upper left", bbox_to_anchor=(0, 0), **style)
    return axes


def _draw_piece(axes: Axes, piece: Piece, place: Position) -> None:
    """Draw the background and the wires of a piece, its name below, and the texts inside it."""
    x, y = place
    if piece.boxed:
        corner, height = (x, y - piece.below + 0.1), piece.below + 0.5
        axes.add_patch(FancyBboxPatch(corner, piece.width, height, zorder=0, label="_block", **BOX))
    for wire in piece.wires:
        xs, ys = zip(*wire.points, strict=True)
        style = dict(WIRES[wire.what]) | {"solid_joinstyle": "round"}
        axes.plot([x + across for across in xs], [y + up for up in ys], zorder=2, label=wire.what, **style)
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": QUIET.light}
    paper = {"facecolor": PAPER.light, "edgecolor": "none", "pad": 1}
    axes.text(x + piece.width / 2, y - piece.below - 0.5, piece.shown_name, **words)
    for mark in piece.marks:
        if mark.what not in MARKS:
            axes.text(x + mark.x, y + mark.y, mark.what, bbox=paper, zorder=2, **words)


def _summary(residual_map: ResidualMap) -> str:
    counted = Counter(residual_map.norms.values())
    roles = [f"{counted[role]} {role}" for role in ("stem", "last", "down", "other") if counted[role]]
    return f"{residual_map.depth} residual blocks" + (f"; γ: {', '.join(roles)}" if roles else "")


def _legend(drawing: Drawing) -> list[Line2D]:
    """Return a handle for every kind of mark and of skip path that is drawn."""
    drawn = {mark.what for piece, _ in drawing.pieces for mark in piece.marks}
    drawn |= {wire.what for piece, _ in drawing.pieces for wire in piece.wires}
    styles = {what: TOGETHER | style for what, style in MARKS.items()} | dict(WIRES)
    named = [what for what in styles if what in drawn and not what.startswith("_")]
    return [Line2D([], [], label=what, **styles[what]) for what in named]
