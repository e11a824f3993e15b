"""A network drawn as blocks on a trunk, its γ coloured by role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from normless.residual import ResidualMap
from normless_lab.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless_lab.plots.palette import GRID, PAPER, QUIET, ROLE_INKS, SCHEME_INKS, TEXT
from normless_lab.plots.structure_layout import Drawing, Piece, Point, arranged

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
    """Draw a line per row, with an arrow if the next row continues it."""
    for (x0, y), (x1, _) in drawing.trunks:
        axes.plot([x0, x1], [y, y], color=QUIET.light, linewidth=1, zorder=1, label="_trunk")
    for _, (x, y) in drawing.trunks[:-1]:
        axes.plot([x], [y], linestyle="none", marker=">", markersize=4, color=QUIET.light, label="_goes on")


def _draw_piece(axes: Axes, piece: Piece, place: Point) -> None:
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


def _draw_marks(axes: Axes, drawing: Drawing) -> None:
    """Draw one line object per kind of mark, with its name in the legend as its label."""
    places: dict[str, list[Point]] = {}
    for piece, (x, y) in drawing.pieces:
        for mark in piece.marks:
            places.setdefault(mark.what, []).append((x + mark.x, y + mark.y))
    for what in filter(places.get, MARKS):
        xs, ys = zip(*places[what], strict=True)
        axes.plot(xs, ys, zorder=3, label=what, **TOGETHER | MARKS[what])


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
