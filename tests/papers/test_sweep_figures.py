"""The figures of sweeps draw the optima they were given."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_lab.plots import inks_of, new_axes, optimum_against, rate_against

INKS = inks_of({"batch_norm": "batch_norm", "bare": "none", "again": "none"})
STYLE = {"series": "method", "across": "batch_size", "inks": INKS}


def optima() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["batch_norm", "batch_norm", "bare", "bare"],
            "batch_size": [256, 16, 16, 256],
            "mean": [94.0, 93.0, 90.0, 10.0],
            "deviation": [0.5, math.nan, 0.1, 0.0],
            "rate": [1.0, 0.25, 0.25, math.nan],
            "rate_low": [0.5, 0.25, 0.125, math.nan],
            "rate_high": [2.0, 0.25, 0.25, math.nan],
            "trainable": [True, True, True, False],
        }
    )


def points(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    """Of a line, or of the line of points with bars, that has the label."""
    lines = {line.get_label(): line for line in axes.get_lines()}
    lines |= {container.get_label(): container[0] for container in axes.containers}
    return list(lines[label].get_xdata()), list(lines[label].get_ydata())


def test_means_in_order_and_hollow_where_nothing_trained() -> None:
    axes = optimum_against(optima(), new_axes(), title="T", up="%", **STYLE)  # type: ignore[arg-type]
    assert points(axes, "batch_norm") == ([16, 256], [93.0, 94.0])
    assert points(axes, "bare, not trained") == ([256], [10.0])
    assert points(axes, "batch_norm, not trained") == ([], [])
    axes.figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "256"]
    assert {"batch norm", "bare"} <= {text.get_text() for text in axes.texts}


def test_inks_differ_and_tables_are_checked() -> None:
    assert len({ink.light for ink in INKS.values()}) == 3
    with pytest.raises(ValueError, match="lacks deviation"):
        optimum_against(optima().drop(columns="deviation"), title="T", up="%", **STYLE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one row"):
        rate_against(optima().iloc[:0], title="T", **STYLE)  # type: ignore[arg-type]
