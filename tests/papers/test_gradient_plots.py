"""The plots of gradient sums and channels draw their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_papers.probes import GradientSums
from normless_papers.understanding_bn.gradient_summands import SUM_SYMBOLS, SUMMANDS, draw_sums

DRAW = np.random.default_rng(0)


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(one.get_label()): (list(one.get_xdata()), list(one.get_ydata())) for one in axes.get_lines()}


@pytest.fixture
def sums() -> pd.DataFrame:
    rows = []
    for scheme, ratio in (("xavier", 0.4), ("batch_norm", 0.01)):
        for order in (1, 2, 3):
            row = {"scheme": scheme, "order": order, "sum_abs": 1e-3, "abs_sum": ratio * 1e-3}
            row |= {"sum_b_abs_sum_xy": 5e-4, "sum_xy_abs_sum_b": 7e-4, "input_independence": ratio}
            rows.append(row | {"predicted_for_random_signs": 0.005 * order})
    return pd.DataFrame(rows)


def test_ratios_are_drawn_beside_those_of_random_signs(sums: pd.DataFrame) -> None:
    axes = GradientSums.plot(sums)
    drawn = lines(axes)
    assert drawn["xavier"] == ([1, 2, 3], [0.4] * 3)
    assert drawn["batch_norm"][1] == [0.01] * 3
    assert drawn["random signs"][1] == [0.005, 0.01, 0.015]
    assert axes.get_yscale() == "log"


def test_a_layer_has_its_four_sums_from_left_to_right(sums: pd.DataFrame) -> None:
    axes = draw_sums(sums, [1, 3])
    drawn = lines(axes)
    assert set(drawn) == {"xavier 1", "xavier 3", "batch_norm 1", "batch_norm 3"}
    assert drawn["xavier 3"][1] == [1e-3, 7e-4, 5e-4, 4e-4]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(SUM_SYMBOLS.values())
    with pytest.raises(ValueError, match="at least one row"):
        draw_sums(sums, [7])


def test_histograms_hold_all_summands_that_are_not_zero() -> None:
    values = np.concatenate([np.zeros(50), DRAW.normal(size=150)])
    table = pd.DataFrame({"parameter": "1,2", "chosen": "largest", "summand": values})
    axes = SUMMANDS(table, bins=9)
    assert axes.get_legend_handles_labels()[1] == ["largest (1,2), 25% zero"]
    shares, edges, _ = axes.patches[0].get_data()  # type: ignore[attr-defined]
    assert (len(shares), edges[0], edges[-1]) == (9, -3, 3)
    assert sum(shares) == pytest.approx(1)
    with pytest.raises(ValueError, match="at least one bin, got 0"):
        SUMMANDS(table, bins=0)
