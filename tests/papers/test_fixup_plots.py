"""The plots of Fixup's and ZeroInit's theory draw their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_lab.plots import lines, new_axes
from normless_lab.plots.palette import PAPER
from normless_papers.fixup.bounds import BOUNDS
from normless_papers.fixup.design_goal import UPDATES
from normless_papers.fixup.homogeneity import SETS
from normless_papers.fixup.updates import TRACES
from normless_papers.zeroinit.initialization import CORRELATIONS, L2_SHARES


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
        (UPDATES, "update_per_rate"),
        (CORRELATIONS, "cosine"),
        (L2_SHARES, "share"),
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
    axes = UPDATES(table)
    assert np.isnan(line(axes, "fixup")[1][1])
    assert "none" not in texts(axes)
    axes.figure.draw_without_rendering()


def test_bounds_are_medians_and_points() -> None:
    table = pd.DataFrame(
        {"block": [1, 1, 2, 2], "gradient_norm": [2.0, 4.0, 1.0, 3.0], "bound": [1.0, 3.0, -1.0, 2.0]}
    )
    axes = BOUNDS(table)
    assert line(axes, "measured, median") == ([1, 2], [3.0, 2.0])
    assert line(axes, "lower bound, median") == ([1, 2], [2.0, 2.0])
    assert line(axes, "lower bound") == ([1, 1, 2], [1.0, 3.0, 2.0])
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
    axes = TRACES(table)
    assert line(axes, "layer 1") == ([1, 2], [5.0, 3.0])
    assert line(axes, "layer 2") == ([1], [2.0])
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0)
    wide = table.assign(trace=table["trace"] ** 5)
    assert TRACES(wide).get_yscale() == "log"
    with pytest.raises(ValueError, match="at least one row"):
        TRACES(table[table["place"] == "stem"])


def test_means_over_weights_by_step_and_a_scheme_without_multipliers() -> None:
    table = pd.DataFrame(
        {
            "scheme": ["fixup"] * 3 + ["none"] * 2,
            "step": [1, 1, 2, 1, 2],
            "weight_norm": [1.0, 3.0, 4.0, 5.0, 6.0],
            "multiplier": [1.0, 1.0, 1.5, np.nan, np.nan],
        }
    )
    axes = lines(table, x="step", y="weight_norm")
    assert line(axes, "fixup") == ([1, 2], [2.0, 4.0])
    assert line(axes, "none") == ([1, 2], [5.0, 6.0])
    other = lines(table, x="step", y="multiplier")
    assert line(other, "fixup") == ([1, 2], [1.0, 1.5])
    assert texts(other) & {"fixup", "none"} == {"fixup"}


def test_sets_are_named_and_the_homogeneous_ones_filled() -> None:
    table = pd.DataFrame(
        {"set": ["stem", "conv"], "relative_error": [0.0, 0.5], "homogeneous": [True, False]}, index=[7, 3]
    )
    axes = SETS(table)
    filled, hollow = (container.lines[0] for container in axes.containers)  # type: ignore[attr-defined]
    assert (list(filled.get_xdata()), list(filled.get_ydata())) == ([1e-9], [0])
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([0.5], [1])
    assert filled.get_markerfacecolor() == filled.get_color()
    assert hollow.get_markerfacecolor() == PAPER.light
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stem", "conv"]
