"""A network drawn as blocks on a trunk, its γ coloured by role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from normless.residual import ResidualMap
from normless_lab.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless_lab.plots.palette import GRID, PAPER, QUIET, ROLE_INKS, SCHEME_INKS, TEXT
from normless_lab.plots.structure_layout import Drawing, Piece, Point, arranged

# Inches per unit, so that a layer's mark of 6.5 points stands clear of the next.
UNIT = 0.14
# The legend needs this many units for four columns of its longest names.
NARROWEST = 60.0
LEGEND_COLUMNS = 4

TOGETHER: dict[str, Any] = {"linestyle": "none", "markersize": 6.5}
# By what the legend calls them; a name with an underscore is not in it.
MARKS: Mapping[str, dict[str, Any]] = {
    "weight layer": {"marker": "s", "color": TEXT.light, "markerfacecolor": PAPER.light},
    "activation": {"marker": ".", "color": TEXT.light},
    **{what: {"marker": ink.marker, "color": ink.light} for what, ink in ROLE_INKS.items()},
    "norm without γ": {"marker": "D", "color": QUIET.light, "markerfacecolor": PAPER.light},
    "scale": {"marker": "^", "color": TEXT.light, "markerfacecolor": PAPER.light},
    "dropout": {"marker": "x", "color": QUIET.light, "markersize": 4.5},
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

    The arc is thin where the skip path is the identity, heavy and with its layers on it where it projects, and
    dashed where it changes the activation without a weight. Blocks inside a branch are smaller arcs within;
    layers that only compute a factor hang below their branch, and each further branch of a sum below the first.
    Layers between blocks that belong to no block follow the last one.

    Of a network of more than 36 blocks, a run of blocks of one form is drawn once with the number of those that
    follow, also where up to six forms take turns; what is still too much is left out in the middle.

    Without `ax` the figure is as large as the drawing needs.
    """
    drawing = arranged(residual_map)
    legend = _legend(drawing)
    width = max(drawing.width, NARROWEST)
    # Beside the drawing there are the title and the lines of the legend.
    inches = drawing.height * UNIT + 0.65 + 0.22 * ceil(len(legend) / LEGEND_COLUMNS)
    axes = new_axes((width + 2) * UNIT, inches) if ax is None else style_axes(ax)
    axes.set_axis_off()
    axes.set_xlim(-1.0, width + 1.0)
    axes.set_ylim(-drawing.height, 0.0)
    _draw_trunk(axes, drawing)
    for piece, place in drawing.pieces:
        _draw_piece(axes, piece, place)
    _draw_marks(axes, drawing)
    name_axes(axes, title=title, across="", up=_summary(residual_map))
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL_FONT_SIZE, "labelcolor": TEXT.light}
    style |= {"ncols": LEGEND_COLUMNS, "columnspacing": 1.2, "handletextpad": 0.4}
    axes.legend(handles=legend, loc="upper left", bbox_to_anchor=(0, 0), **style)
    return axes


def _draw_trunk(axes: Axes, drawing: Drawing) -> None:
    """A line per row, with an arrow where it goes on in the next."""
    for (x0, y), (x1, _) in drawing.trunks:
        axes.plot([x0, x1], [y, y], color=QUIET.light, linewidth=1, zorder=1, label="_trunk")
    for _, (x, y) in drawing.trunks[:-1]:
        axes.plot([x], [y], linestyle="none", marker=">", markersize=4, color=QUIET.light, label="_goes on")


def _draw_piece(axes: Axes, piece: Piece, place: Point) -> None:
    """The background and the wires of a piece, its name below, and the texts inside it."""
    x, y = place
    if piece.boxed:
        corner, height = (x, y - piece.below + 0.1), piece.below + 0.5
        axes.add_patch(FancyBboxPatch(corner, piece.width, height, zorder=0, label="_block", **BOX))
    for wire in piece.wires:
        line = _rounded([(x + across, y + up) for across, up in wire.points])
        axes.add_patch(PathPatch(line, fill=False, zorder=2, label=wire.what, **WIRES[wire.what]))
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": QUIET.light}
    paper = {"facecolor": PAPER.light, "edgecolor": "none", "pad": 1}
    axes.text(x + piece.width / 2, y - piece.below - 0.5, _cut(piece.name, piece.letters), **style)
    for mark in piece.marks:
        if mark.what not in MARKS:
            axes.text(x + mark.x, y + mark.y, mark.what, bbox=paper, zorder=2, **style)


def _draw_marks(axes: Axes, drawing: Drawing) -> None:
    """One line object per kind of mark, named as the legend names it; marks of no kind are texts."""
    places: dict[str, list[Point]] = {}
    for piece, (x, y) in drawing.pieces:
        for mark in piece.marks:
            places.setdefault(mark.what, []).append((x + mark.x, y + mark.y))
    for what in filter(places.get, MARKS):
        xs, ys = zip(*places[what], strict=True)
        axes.plot(xs, ys, zorder=3, label=what, **TOGETHER | MARKS[what])


def _cut(name: str, letters: int) -> str:
    """The name, of a too long one its two ends."""
    room = max(letters - 1, 2)
    return name if len(name) <= letters else f"{name[: room - room // 2]}…{name[len(name) - room // 2 :]}"


def _rounded(points: Sequence[Point], radius: float = 0.35) -> Path:
    """The line through the points, its corners rounded."""
    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        vertices += [_towards(corner, before, radius), corner, _towards(corner, after, radius)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*vertices, points[-1]], [*codes, Path.LINETO])


def _towards(start: Point, end: Point, length: float) -> Point:
    """The point so far from `start` on the upright or level way to `end`, at most half of it."""
    (x0, y0), (x1, y1) = start, end
    distance = abs(x1 - x0) + abs(y1 - y0)
    share = min(length / distance, 0.5) if distance else 0.0
    return x0 + share * (x1 - x0), y0 + share * (y1 - y0)


def _summary(residual_map: ResidualMap) -> str:
    counted = Counter(residual_map.norms.values())
    roles = [f"{counted[role]} {role}" for role in ("stem", "last", "down", "other") if counted[role]]
    return f"{residual_map.depth} residual blocks" + (f"; γ: {', '.join(roles)}" if roles else "")


def _legend(drawing: Drawing) -> list[Line2D]:
    """Every mark and every kind of skip path that is drawn, once."""
    drawn = {mark.what for piece, _ in drawing.pieces for mark in piece.marks}
    drawn |= {wire.what for piece, _ in drawing.pieces for wire in piece.wires}
    styles = {what: TOGETHER | style for what, style in MARKS.items()} | dict(WIRES)
    named = [what for what in styles if what in drawn and not what.startswith("_")]
    return [Line2D([], [], label=what, **styles[what]) for what in named]
