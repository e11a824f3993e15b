"""The style of all figures, and the common parts of the grammars: columns, series, scales, ticks, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)

from normless_lab.plots._frames import Law, Style, Ticks
from normless_lab.plots._palette import GRID, PAPER, QUIET, TEXT, Ink, inks_of, series_ink

FONT_SIZE = 10.0
SMALL_FONT_SIZE = 9.0


def new_axes(width: float = 4.9, height: float = 3.4) -> Axes:
    """Return an empty, styled Axes on a new figure (size in inches), small enough for a telephone."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER.light)
    return style_axes(figure.add_subplot())


def new_panels(columns: int, rows: int = 1, *, width: float = 4.4, height: float = 3.4) -> list[Axes]:
    """Return several empty, styled Axes on one figure, row by row, each of ``width`` by ``height`` inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor=PAPER.light)
    return [style_axes(axes) for axes in figure.subplots(rows, columns, squeeze=False).flat]


def style_axes(axes: Axes) -> Axes:
    """Set light spines and a horizontal grid below the data; return the same Axes."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET.light)
    axes.grid(visible=True, axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    axes.tick_params(axis="x", which="major", length=3)
    # The name of the vertical axis is above the plot at the left.
    axes.yaxis.set_offset_position("right")
    axes.yaxis.get_offset_text().set_fontsize(SMALL_FONT_SIZE)
    return axes


def title_axes(axes: Axes, title: str) -> None:
    """Set or replace the title above the plot at the left, wrapped to the width of its panel."""
    axes.set_title(
        f"{_wrapped(axes, title, FONT_SIZE + 1)}\n",
        loc="left",
        fontsize=FONT_SIZE + 1,
        fontweight="bold",
        color=TEXT.light,
        pad=4,
    )


def _wrapped(axes: Axes, text: str, size: float) -> str:
    """The text in lines that a panel has room for; letters of a size in points are 0.62 of it wide on average."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    if figure is None:
        return text
    columns = place.get_gridspec().ncols if place is not None else 1
    letters = int(72 * figure.get_size_inches()[0] / columns / (0.62 * size))
    return "\n".join(fill(line, max(letters, 12)) for line in text.split("\n"))


def name_axes(axes: Axes, *, title: str, across: str, up: str) -> None:
    """Set the title and the name of the vertical axis above the plot at the left, the other name below."""
    up = _wrapped(axes, up, SMALL_FONT_SIZE)
    # The name of the vertical axis has the last of the title's lines, and further ones of its own.
    title_axes(axes, f"{title}" + "\n" * up.count("\n"))
    axes.annotate(
        up,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=SMALL_FONT_SIZE,
        color=QUIET.light,
        verticalalignment="bottom" if "\n" in up else "baseline",
    )
    axes.set_xlabel(across, fontsize=SMALL_FONT_SIZE, color=QUIET.light)


def add_legend(axes: Axes, handles: Mapping[str, Artist] | None = None, *, beside: bool = True) -> None:
    """Add a legend at the right of the plot or in it, of these artists by their names, or of all with a label."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    if handles is not None:
        place |= {"handles": list(handles.values()), "labels": list(handles)}
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL_FONT_SIZE, "handlelength": 1.4}
    legend = axes.legend(labelcolor=TEXT.light if handles is None else "linecolor", **style, **place)
    # Marks in the legend are brighter than those in the plot.
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, Line2D) and handle.get_marker() == ".":
                handle.set_markersize(8)


Numbers = npt.NDArray[np.float64]

# More ticks, or more letters of their labels, at the values of a table would run together.
_MOST_TICKS, _MOST_LETTERS = 8, 36
# Values of y that span more than this factor make a logarithmic axis, if it depends on them.
_WIDE = 30
# Of axes, where the column is not its own label.
LABELS = {"depth": "depth (layers)", "order": "layer", "rate": "learning rate"}
_SUPERSCRIPTS = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")


def columns_of(names: str | Sequence[str] | None) -> list[str]:
    """Return a column, several columns or None as a list."""
    return [names] if isinstance(names, str) else list(names or ())


def begin(ax: Axes | None, frame: Style, values: pd.Series | pd.DataFrame | None = None) -> Axes:
    """Return the styled Axes to draw on, with its scales; `values` determine a scale that depends on them."""
    axes = new_axes(*frame.get("size", ())) if ax is None else style_axes(ax)
    log = frame.get("log", "")
    if log.endswith("y?"):
        numbers = np.asarray(values, dtype=float)
        numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
        wide = bool(len(numbers)) and bool(numbers.max() > _WIDE * numbers.min())
        frame["log"] = log = log.removesuffix("y?") + "y" * wide
    for name in log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    return axes


def series_column(table: pd.DataFrame, by: str | None) -> str | None:
    """The column of the series' names: ``scheme`` where none is given and the table has it."""
    return "scheme" if by is None and "scheme" in table else by


def series_of(table: pd.DataFrame, by: str | None, frame: Style) -> list[tuple[str, pd.DataFrame, Ink]]:
    """Return the name, rows and colour of each series, in order of appearance; a single unnamed one without `by`."""
    if by is None:
        return [("", table, series_ink(0))]
    form = frame.get("name", "{}")
    parts = [(form.format(name), rows) for name, rows in table.groupby(by, sort=False)]
    chosen = inks_of({name: name for name, _ in parts}) | dict(frame.get("inks", {}))
    return [(name, rows, chosen[name]) for name, rows in parts]


def drawable(values: pd.Series, *, log: bool) -> Numbers:
    """Replace values that are infinite, or not above 0 on a logarithmic axis, by NaN, which leaves a gap."""
    numbers = values.to_numpy(float)
    return np.where(np.isfinite(numbers) & ((numbers > 0) | (not log)), numbers, np.nan)


def bar_lengths(values: Numbers, ends: Sequence[Numbers], frame: Style) -> Numbers | None:
    """Lengths [2, N] of error bars from half widths or both ends, within the frame's bounds; 0 where not known."""
    if not ends:
        return None
    lengths = [values - ends[0], ends[1] - values] if len(ends) == 2 else [ends[0], ends[0]]
    low, high = frame.get("bounds", (None, None))
    room = [values - (-np.inf if low is None else low), (np.inf if high is None else high) - values]
    # A value beyond its bounds, which rounding makes, has no bar to that side.
    return np.clip(np.nan_to_num(np.array(lengths)), 0.0, np.maximum(np.nan_to_num(room, posinf=np.inf), 0.0))


def finish(
    axes: Axes,
    frame: Style,
    handles: dict[str, Line2D] | None = None,
    *,
    table: pd.DataFrame | None = None,
    x: str = "",
    y: str = "",
) -> Axes:
    """Draw laws and marks, and set limits, ticks, titles and the legend.

    The legend has the lines in `handles` by their names, from the highest end to the lowest; if the frame places it,
    it has every artist with a label. Ticks and laws are at the values of the column `x` of the table; the axes are
    named after the columns where the frame has no label.
    """
    log = frame.get("log", "")
    values = np.unique(table[x].to_numpy(float)) if table is not None else np.array([])
    values = values[np.isfinite(values) & ((values > 0) | ("x" not in log))]
    laws = {law.name: _draw_law(axes, law, table, x, values) for law in frame.get("laws", ())}
    for draw, marks in ((axes.axvline, frame.get("x_marks", ())), (axes.axhline, frame.get("y_marks", ()))):
        for place in marks:
            draw(place, color=QUIET.light, linewidth=0.8, linestyle=":", zorder=1, label="_mark")
    if "x" in log and len(values):
        axes.set_xlim(values[0] / 1.15, values[-1] * 1.15)
    axes.set_xlim(*frame.get("x_limits", ()))
    low, high = sorted(axes.get_ylim())
    if "y" in log and high < 3 * low and "y_limits" not in frame:
        # A decade on both sides shows that a line is level.
        axes.set_ylim(low / 10, high * 10)
    bottom, top = frame.get("y_limits", (None, None))
    axes.set_ylim(None if "y" in log and not bottom else bottom, top)
    if "y_limits" in frame:
        _show_whole_marks(axes)
    _set_ticks(axes.xaxis, frame.get("x_ticks", "auto"), values, log="x" in log)
    _set_ticks(axes.yaxis, frame.get("y_ticks", "auto"), np.array([]), log="y" in log)
    across, up = frame.get("x_label", label_of(x)), frame.get("y_label", label_of(y))
    name_axes(axes, title=frame.get("title", ""), across=fill(across, 64), up=up)
    named = {name: line for name, line in ((handles or {}) | laws).items() if name}
    if "names" not in frame and named:
        by_end = sorted(named, key=lambda name: -_end(named[name]))
        add_legend(axes, {name: named[name] for name in by_end}, beside=True)
    elif frame.get("names", "none") != "none":
        add_legend(axes, beside=frame["names"] == "beside")
    return axes


def _show_whole_marks(axes: Axes) -> None:
    """Let marks at a limit of the axes be drawn whole: half of one at 100 % would be cut off."""
    limits = {"x": axes.get_xlim(), "y": axes.get_ylim()}
    for line in axes.lines:
        data = {"x": line.get_xdata(), "y": line.get_ydata()}
        values = {name: np.asarray(column, dtype=float) for name, column in data.items()}
        inside = [(values[name] >= min(ends)) & (values[name] <= max(ends)) for name, ends in limits.items()]
        known = ~np.isnan(values["y"])
        has_marks = line.get_marker() not in ("None", "none", "", None)
        line.set_clip_on(not (has_marks and all(within[known].all() for within in inside)))


def _end(line: Line2D) -> float:
    """Return the last known height of a line, -∞ without one."""
    heights = np.asarray(line.get_ydata(), dtype=float)
    return float([-np.inf, *heights[~np.isnan(heights)]][-1])


def label_of(column: str) -> str:
    """Return the label of an axis that shows a column."""
    return LABELS.get(column, column.replace("_", " "))


def _draw_law(axes: Axes, law: Law, table: pd.DataFrame | None, x: str, values: Numbers) -> Line2D:
    """Draw a dotted line over the values of the table, or over the whole width."""
    if isinstance(law.y, str):
        assert table is not None
        rows = table.dropna(subset=[law.y]).groupby(x)[law.y].first()
        across, up = rows.index.to_numpy(float), rows.to_numpy(float)
    else:
        across = values if len(values) else np.linspace(*axes.get_xlim(), 50)
        up = np.broadcast_to(np.asarray(law.y(across), dtype=float), across.shape)
    style: dict[str, Any] = {"color": QUIET.light, "linewidth": 1.1, "linestyle": ":", "zorder": 1.5}
    return axes.plot(across, up, label=law.name or "_law", **style)[0]


def _set_ticks(axis: Axis, ticks: Ticks, values: Numbers, *, log: bool) -> None:
    """Set major ticks at positions or by a rule, without minor ticks."""
    low, high = sorted(axis.get_view_interval())
    locator: Any = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    formatter: Any = None
    if ticks == "auto" and len(values):
        few = log and len(values) <= _MOST_TICKS
        ticks = "values" if few else "integers" if not log and (values % 1 == 0).all() else "auto"
    if isinstance(ticks, Mapping):
        locator, formatter = FixedLocator(list(ticks)), FixedFormatter(list(ticks.values()))
    elif ticks == "values":
        letters = sum(len(f"{value:g} ") for value in values)
        step = max(1, -(-len(values) // _MOST_TICKS), -(-letters // _MOST_LETTERS))
        locator = FixedLocator(values[::step].tolist())
        formatter = FuncFormatter(lambda value, _: f"{value:g}")
    elif ticks == "percent":
        formatter = PercentFormatter(1, symbol=" %")
    elif ticks in ("integers", "powers of 2", "powers of 10"):
        locator = MaxNLocator(9 if ticks == "integers" else 6, steps=[1, 2, 5, 10], integer=True)
        if ticks != "integers":
            base = int(ticks.removeprefix("powers of "))
            formatter = FuncFormatter(lambda exponent, _: power(base, exponent))
    elif log and high > 1000 * low:
        locator = LogLocator(10, numticks=7)
    elif log:
        locator = LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8)
        formatter = FuncFormatter(lambda value, _: f"{value:.3g}")
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    if formatter is not None:
        axis.set_major_formatter(formatter)


def power(base: int, exponent: float) -> str:
    """Return a tick label such as 2⁻³ for its exponent."""
    return f"{base}" + f"{exponent:g}".translate(_SUPERSCRIPTS)
