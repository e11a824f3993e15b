"""The second moment of the residual stream from block to block, beside what γ alone says."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import QUIET
from normless.plots.probes.measured_lines import draw_measured
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

COLUMNS = ("block", "name", "equation", "stream_second_moment", "predicted_stream_second_moment")
_EXPECTED = "expected_stream_second_moment"
_RESETS = (15, 17)
# More names than this do not fit below the axis.
_NAMES = 18


def stream_second_moment(gamma: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the second moment behind every block, measured and as γ predicts it; resets are marked by an upright line.

    Figure 5 of Kim et al.: a projecting block sets the variance anew, those behind it accumulate. Where the table has
    ``expected_stream_second_moment``, the prediction from all weights, that is a dashed line.

    Args:
        gamma: the table of the probe `stream` for one network.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, the table is empty, or a block is there twice.
    """
    require_columns(gamma, COLUMNS, "Second moment of the stream")
    if gamma["block"].duplicated().any():
        raise ValueError("Expected one row per block, but one is there twice; draw one network.")
    axes = new_axes() if ax is None else style_axes(ax)
    ordered = gamma.sort_values("block").reset_index(drop=True)
    resets = ordered[ordered["equation"].isin(_RESETS)]
    for block in resets["block"]:
        axes.axvline(block, color=QUIET.light, linewidth=0.8, linestyle=":", zorder=1, label="_reset")
    measured, predicted = ordered["stream_second_moment"], ordered["predicted_stream_second_moment"]
    shown = [measured, predicted, ordered[_EXPECTED]] if _EXPECTED in ordered else [measured, predicted]
    axes.set_ylim(0, 1.08 * float(np.nanmax(shown)))
    draw_measured(axes, ordered["block"], measured, predicted, series_ink(0), "γ alone")
    labels = [_end("γ alone", ordered, "predicted_stream_second_moment", series_ink(0).light)]
    if _EXPECTED in ordered:
        ink = series_ink(1).light
        axes.plot(ordered["block"], ordered[_EXPECTED], color=ink, linewidth=1.2, linestyle="--", label="all weights")
        labels.append(_end("all weights", ordered, _EXPECTED, ink))
    names = ordered if len(ordered) <= _NAMES else resets
    axes.set_xticks(names["block"].to_list(), names["name"].to_list(), rotation=45, ha="right")
    up = "second moment behind the block; points measured, upright lines resets"
    name_axes(axes, title="What γ makes of the stream", across="", up=up)
    label_ends(axes, [label for label in labels if np.isfinite(label.y)])
    return axes


def _end(text: str, table: pd.DataFrame, column: str, colour: str) -> EndLabel:
    """A name at the last value of a column."""
    known = table[table[column].notna()]
    if known.empty:
        return EndLabel(text, 0.0, float("nan"), colour)
    return EndLabel(text, float(known["block"].iloc[-1]), float(known[column].iloc[-1]), colour)
