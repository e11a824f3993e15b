"""The variance on the skip path against the block, measured and predicted, one colour per scheme."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import Ink, scheme_ink
from normless.plots.tables import require_columns

COLUMNS = ("scheme", "block", "skip_variance", "predicted_skip_variance")
NO_LAWS: Mapping[str, str] = MappingProxyType({})


def skip_variance_against_block(
    signal: pd.DataFrame, ax: Axes | None = None, *, laws: Mapping[str, str] = NO_LAWS
) -> Axes:
    """Draw skip-path variance against block, both logarithmic: measured points and predicted lines.

    The picture reaches from a hundredth of where the networks start to four times the number of blocks, which is
    more than normalized networks reach; a scheme that leaves it is named where it leaves, with an arrow.

    Args:
        signal: a row per scheme and block: ``scheme``, ``block`` (1..L), ``skip_variance`` (over batch, channels
            and positions, where the branch is added) and ``predicted_skip_variance``; where there is a column
            ``law_skip_variance`` its numbers, the law of an idealized network, are drawn as a dotted line.
        ax: where to draw; a new figure without it.
        laws: the law in words per scheme, as in ``{"none": "2^d"}``, written beside its name.

    Raises:
        ValueError: a column is missing, the table is empty, or a scheme has a block twice.
    """
    require_columns(signal, COLUMNS, "Skip variance against block")
    if signal.duplicated(["scheme", "block"]).any():
        raise ValueError("Expected one row per scheme and block, but one has a block twice; draw one network.")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    axes.set_yscale("log")
    blocks = int(signal["block"].max())
    axes.set_ylim(*_limits(signal, blocks))
    axes.set_xlim(0.9, max(blocks, 2) * 1.1)
    labels = []
    for scheme, rows in signal.groupby("scheme", sort=False):
        ordered = rows.sort_values("block")
        _draw_scheme(axes, str(scheme), ordered)
        labels.append(_end_label(axes, str(scheme), laws.get(str(scheme)), ordered))
    name_axes(axes, title="Signal at initialization", across="block", up="variance on the skip path")
    axes.xaxis.set_major_locator(FixedLocator(_ticks(blocks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda block, _: f"{block:.0f}"))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    label_ends(axes, labels)
    return axes


def _draw_scheme(axes: Axes, scheme: str, rows: pd.DataFrame) -> None:
    """The law dotted, the prediction as a line, the measurement as points on it."""
    ink, blocks = scheme_ink(scheme), rows["block"]
    if "law_skip_variance" in rows:
        law = rows["law_skip_variance"]
        axes.plot(blocks, law, color=ink.light, linewidth=1, linestyle=":", zorder=2, label=f"{scheme}, law")
    predicted = rows["predicted_skip_variance"]
    axes.plot(blocks, predicted, color=ink.light, linewidth=1.6, zorder=3, label=f"{scheme}, predicted")
    axes.plot(
        blocks,
        rows["skip_variance"],
        linestyle="none",
        markevery=_evenly_on_log_axis(blocks.to_numpy(float)),
        zorder=4,
        label=f"{scheme}, measured",
        **_hollow(ink),
    )


def _hollow(ink: Ink) -> dict[str, Any]:
    return {
        "marker": ink.marker,
        "markersize": 4.5,
        "markerfacecolor": "none",
        "markeredgecolor": ink.light,
        "markeredgewidth": 1.1,
    }


def _end_label(axes: Axes, scheme: str, law: str | None, rows: pd.DataFrame) -> EndLabel:
    """The name at the last block, or where the predicted line leaves the picture."""
    low, high = axes.get_ylim()
    text, colour = scheme if law is None else f"{scheme}  {law}", scheme_ink(scheme).light
    blocks = rows["block"].to_numpy(float)
    variances = rows["predicted_skip_variance"].to_numpy(float)
    outside = np.flatnonzero(~((variances >= low) & (variances <= high)))
    if not len(outside):
        return EndLabel(text, blocks[-1], variances[-1], colour)
    last_inside = blocks[max(int(outside[0]) - 1, 0)]
    if variances[outside[0]] < low:
        return EndLabel(f"{text} ↓", last_inside, low, colour)
    return EndLabel(f"{text} ↑", last_inside, high, colour)


def _evenly_on_log_axis(blocks: npt.NDArray[np.float64], wanted: int = 24) -> list[int]:
    """Which points get a marker: about ``wanted``, spaced evenly to the eye, lest markers run together."""
    targets = np.geomspace(blocks[0], blocks[-1], wanted)
    return sorted({int(np.abs(blocks - target).argmin()) for target in targets})


def _limits(signal: pd.DataFrame, blocks: int) -> tuple[float, float]:
    """From half the smallest value shown, at most 1/2, to four times the number of blocks; at least 3 decades."""
    values = signal[["skip_variance", "predicted_skip_variance"]].to_numpy(float)
    drawable = np.isfinite(values) & (values > 0)
    first = (signal["block"] == signal["block"].min()).to_numpy()[:, None]
    start = values[drawable & first].min(initial=1.0)
    shown = values[drawable & (values >= start / 100) & (values <= 4 * blocks)]
    low = float(shown.min(initial=1.0)) / 2
    return low, max(4.0 * blocks, 1000 * low)


def _ticks(blocks: int) -> list[int]:
    """Powers of two, and the last block in place of the power it would be written over."""
    powers = [2**power for power in range(blocks.bit_length()) if 2**power < blocks / 1.7]
    return [*powers, blocks]
