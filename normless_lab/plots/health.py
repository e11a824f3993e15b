"""The health of a trained network by layer: a strip for each quantity over the layers in execution order."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normless.doctor.trained import Health
from normless.doctor.trained.limits import QUANTITIES, Quantity
from normless_lab.plots.frame import FONT_SIZE, SMALL_FONT_SIZE, new_panels
from normless_lab.plots.palette import GRID, QUIET, SCHEME_INKS, TEXT

_WIDTH, _HEIGHT = 8.6, 1.25
# The largest number of names below the strips.
_NAMES = 24
_INKS = {"norm": "batch_norm", "weight": "skipinit", "activation": "fixup", "attention": "rezero", "block": "lsuv"}


def health_by_layer(report: Health, *, title: str = "Health by layer") -> Axes:
    """Draw the quantities of a report that are not zero in all layers, and return the uppermost strip.

    Limits are dashed lines; layers beyond one have the colour of a fault and a name.
    """
    table = report.table.reset_index(drop=True)
    shown = [name for name in QUANTITIES if _is_shown(table[name])]
    zero = [name for name in QUANTITIES if name not in shown and table[name].notna().any()]
    panels = new_panels(1, max(len(shown), 1), width=_WIDTH, height=_HEIGHT)
    for axes, name in zip(panels, shown, strict=False):
        _strip(axes, table, name, QUANTITIES[name])
    for axes in panels[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    if len(table):
        _name_layers(panels, list(table["layer"]))
    if zero:
        words = "; ".join(QUANTITIES[name].words for name in zero)
        panels[-1].set_xlabel(f"0 in all layers: {words}", fontsize=SMALL_FONT_SIZE, color=QUIET.light, wrap=True)
    found = f"{len(report.findings)} findings" if len(report.findings) != 1 else "1 finding"
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    marks = [(kind, SCHEME_INKS[ink]) for kind, ink in _INKS.items() if (table["kind"] == kind).any()]
    marks.append(("beyond the limit", SCHEME_INKS["none"]))
    handles = [Line2D([], [], linestyle="none", marker=ink.marker, color=ink.light, markersize=4) for _, ink in marks]
    figure.legend(
        handles, [kind for kind, _ in marks], loc="upper right", ncols=len(marks), frameon=False,
        fontsize=SMALL_FONT_SIZE - 1, labelcolor=QUIET.light, handletextpad=0.1, columnspacing=0.8,
    )  # fmt: skip
    figure.suptitle(
        f"{title}: {found}", x=0.01, ha="left", fontsize=FONT_SIZE + 1, fontweight="bold", color=TEXT.light
    )
    return panels[0]


def _is_shown(values: pd.Series) -> bool:
    return bool(values.notna().any()) and bool((values.fillna(0) != 0).any())


def _strip(axes: Axes, table: pd.DataFrame, name: str, quantity: Quantity) -> None:
    values = table[name].to_numpy(float)
    is_log = quantity.log and bool((values[np.isfinite(values)] > 0).any())
    limit = quantity.limit
    beyond: npt.NDArray[np.bool_] = np.zeros(len(values), dtype=bool)
    if limit is not None:
        beyond = values < limit if quantity.below else values >= limit
    if is_log:
        axes.set_yscale("log")
        positive = values[np.isfinite(values) & (values > 0)]
        values = np.where(values == 0, positive.min() / 3, values)
    known = np.isfinite(values)
    for kind, ink in _INKS.items():
        chosen = known & ~beyond & (table["kind"] == kind).to_numpy()
        colour = SCHEME_INKS[ink]
        axes.plot(
            np.flatnonzero(chosen), values[chosen], linestyle="none", marker=colour.marker, markersize=3.5,
            color=colour.light, markeredgewidth=0, label=kind,
        )  # fmt: skip
    fault = SCHEME_INKS["none"]
    at = np.flatnonzero(known & beyond)
    axes.plot(at, values[at], linestyle="none", marker=fault.marker, markersize=6, color=fault.light)
    worst = sorted(at, key=lambda index: values[index] if quantity.below else -values[index])
    named = worst[:1] + [place for place in worst[1:] if abs(place - worst[0]) > len(values) / 3][:1]
    axes.margins(y=0.35)
    for place in named:
        is_left = place > 0.7 * len(values)
        axes.annotate(
            str(table["layer"][place]), (place, values[place]), xytext=(-5 if is_left else 5, 4),
            textcoords="offset points", ha="right" if is_left else "left", va="bottom",
            fontsize=SMALL_FONT_SIZE - 1, color=TEXT.light,
        )  # fmt: skip
    if limit is not None and known.any():
        _draw_limit(axes, limit, values[known], is_log)
    axes.set_title(quantity.words, loc="left", fontsize=SMALL_FONT_SIZE, color=QUIET.light, pad=3)
    axes.set_xlim(-1, len(values))


def _draw_limit(axes: Axes, limit: float, values: npt.NDArray[np.float64], is_log: bool) -> None:
    """Draw the limit, if it would not squeeze the values into a line."""
    low, high = float(values.min()), float(values.max())
    is_near = limit <= 30 * high and low <= 1000 * limit if is_log else True
    if is_near:
        axes.axhline(limit, color=QUIET.light, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if not is_log:
            axes.set_ylim(-0.05 * max(limit, high), 1.4 * max(limit, high))


def _name_layers(panels: list[Axes], layers: list[str]) -> None:
    """Put thin lines between groups of layers, and the groups' names below the last strip where there is room."""
    groups = _groups(layers)
    starts = [start for start, _ in groups]
    # Letters that fit below each group: about 110 in the whole width, of a turned name two and a half.
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(layers)], strict=True)]
    room = [110 * size / len(layers) for size in sizes]
    turned = any(len(name) > space > 4 for (_, name), space in zip(groups, room, strict=True))
    names = [
        name if (2.5 if turned else len(name)) <= space else "" for (_, name), space in zip(groups, room, strict=True)
    ]
    for axes in panels:
        for start in starts[1:]:
            axes.axvline(start - 0.5, color=GRID.light, linewidth=0.8, zorder=0)
        axes.set_xticks([])
    panels[-1].set_xticks(
        [start + (size - 1) / 2 for start, size in zip(starts, sizes, strict=True)],
        names,
        fontsize=SMALL_FONT_SIZE - 1,
        rotation=90 if turned else 0,
        color=QUIET.light,
    )
    panels[-1].tick_params(axis="x", labelbottom=True, length=0)


def _groups(layers: list[str]) -> list[tuple[int, str]]:
    """Return start and name of runs of layers with a common beginning, as many as there is room for."""
    paths = [layer.partition("#")[0].split(".") for layer in layers]
    common = _common(paths)
    for depth in (3, 2, 1, 0):
        names = [".".join(path[: depth + len(common)]) for path in paths]
        runs, start = [], 0
        for name, members in groupby(names):
            parts = name.split(".")
            # The last common name stays, as in h.3.
            short = parts[max(len(common) - 1, 0) :] if parts[: len(common)] == common else parts
            runs.append((start, ".".join(short)))
            start += len(list(members))
        if len(runs) <= _NAMES and depth:
            return runs
    step = max(len(layers) // 10, 1)
    return [(start, str(start + 1)) for start in range(0, len(layers), step)]


def _common(paths: list[list[str]]) -> list[str]:
    """Return the leading components that four fifths of the layers share."""
    common: list[str] = []
    while True:
        nexts = Counter(
            path[len(common)] for path in paths if path[: len(common)] == common and len(path) > len(common) + 1
        )
        name, count = nexts.most_common(1)[0] if nexts else ("", 0)
        if not count or count < 0.8 * len(paths):
            return common
        common.append(name)
