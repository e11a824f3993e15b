"""The figures of Fixup's and ZeroInit's theory draw the numbers they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless.plots.axes import new_axes
from normless.plots.probes.against_depth import (
    function_update_against_depth,
    gradient_correlation_against_depth,
    l2_share_against_depth,
)
from normless.plots.probes.gradient_bounds import gradient_bounds_against_block
from normless.plots.probes.homogeneity import homogeneity_of_sets
from normless.plots.probes.update_trace import update_trace_against_block
from normless.plots.probes.weight_dynamics import multipliers_against_step, weight_norms_against_step


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = [one for one in axes.get_lines() if one.get_label() == label]
    return list(found.get_xdata()), list(found.get_ydata())


def texts(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def by_depth(column: str) -> pd.DataFrame:
    return pd.DataFrame(
        {"scheme": ["fixup", "fixup", "fixup", "none"], "depth": [4, 4, 16, 4], column: [0.2, 0.4, 0.5, 0.7]}
    )


@pytest.mark.parametrize(
    ("draw", "column"),
    [
        (function_update_against_depth, "update_per_rate"),
        (gradient_correlation_against_depth, "cosine"),
        (l2_share_against_depth, "share"),
    ],
)
def test_medians_by_depth_and_the_names_of_schemes(draw: object, column: str) -> None:
    assert callable(draw)
    axes = draw(by_depth(column), new_axes())
    depths, values = line(axes, "fixup")
    assert depths == [4, 16]
    assert values == pytest.approx([0.3, 0.5])
    assert {"fixup", "none"} <= texts(axes)
    axes.figure.draw_without_rendering()
    with pytest.raises(ValueError, match="lacks"):
        draw(by_depth("other"))


def test_updates_that_are_not_finite_leave_a_gap() -> None:
    table = by_depth("update_per_rate")
    table.loc[2, "update_per_rate"] = np.inf
    table.loc[3, "update_per_rate"] = 0.0
    axes = function_update_against_depth(table)
    assert np.isnan(line(axes, "fixup")[1][1])
    assert "none" not in texts(axes)
    axes.figure.draw_without_rendering()


def test_bounds_are_medians_and_points() -> None:
    table = pd.DataFrame(
        {"block": [1, 1, 2, 2], "gradient_norm": [2.0, 4.0, 1.0, 3.0], "bound": [1.0, 3.0, -1.0, 2.0]}
    )
    axes = gradient_bounds_against_block(table)
    assert line(axes, "measured, median") == ([1, 2], [3.0, 2.0])
    assert line(axes, "lower bound, median") == ([1, 2], [2.0, 2.0])
    assert np.isnan(line(axes, "lower bound, examples")[1][2])
    assert {"measured", "lower bound"} <= texts(axes)


def test_traces_by_position_on_the_branch() -> None:
    table = pd.DataFrame(
        {
            "place": ["branch", "branch", "branch", "stem", "branch"],
            "block": [1, 1, 2, 0, 1],
            "position": [1, 2, 1, 1, 1],
            "trace": [1.0, 2.0, 3.0, 9.0, 4.0],
        }
    )
    axes = update_trace_against_block(table)
    assert line(axes, "layer 1") == ([1, 2], [5.0, 3.0])
    assert line(axes, "layer 2") == ([1], [2.0])
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0)
    wide = table.assign(trace=table["trace"] ** 5)
    assert update_trace_against_block(wide).get_yscale() == "log"
    with pytest.raises(ValueError, match="weight layers on branches"):
        update_trace_against_block(table[table["place"] == "stem"])


def test_means_of_branch_weights_by_step() -> None:
    table = pd.DataFrame(
        {
            "scheme": ["fixup"] * 4 + ["none"] * 2,
            "step": [1, 1, 2, 2, 1, 2],
            "place": ["branch", "branch", "branch", "stem", "branch", "branch"],
            "weight_norm": [1.0, 3.0, 4.0, 100.0, 5.0, 6.0],
            "multiplier": [1.0, 1.0, 1.5, np.nan, np.nan, np.nan],
        }
    )
    axes = weight_norms_against_step(table)
    assert line(axes, "fixup") == ([1, 2], [2.0, 4.0])
    assert line(axes, "none") == ([1, 2], [5.0, 6.0])
    other = multipliers_against_step(table)
    assert line(other, "fixup") == ([1, 2], [1.0, 1.5])
    assert texts(other) & {"fixup", "none"} == {"fixup"}
    with pytest.raises(ValueError, match="weights on branches"):
        weight_norms_against_step(table[table["place"] == "stem"])


def test_sets_are_named_and_the_homogeneous_ones_filled() -> None:
    table = pd.DataFrame(
        {"set": ["stem", "conv"], "relative_error": [0.0, 0.5], "homogeneous": [True, False]}, index=[7, 3]
    )
    axes = homogeneity_of_sets(table)
    assert line(axes, "homogeneous") == ([1e-9], [0])
    assert line(axes, "not homogeneous") == ([0.5], [1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stem", "conv"]
