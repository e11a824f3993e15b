"""The plots of gradient sums and channels draw their tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_lab.plots import PLOTS, inline_svg
from normless_papers.plots import SUMS_OF_PARAMETERS
from normless_papers.probes import ChannelContributions, GradientSums
from normless_papers.understanding_bn.channels_and_classes import PAIRS
from normless_papers.understanding_bn.gradient_summands import AGAINST_MEAN, SUM_SYMBOLS, SUMMANDS, draw_sums

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


@pytest.fixture
def parameters() -> pd.DataFrame:
    sum_abs = np.exp(DRAW.normal(size=400))
    table = pd.DataFrame({"scheme": ["xavier"] * 200 + ["batch_norm"] * 200, "sum_abs": sum_abs})
    return table.assign(abs_sum=0.5 * sum_abs, channel_mean=DRAW.normal(size=400))


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


def test_parameters_are_points_below_the_diagonal(parameters: pd.DataFrame) -> None:
    drawn = lines(SUMS_OF_PARAMETERS(parameters))
    np.testing.assert_array_equal(drawn["xavier"][1], parameters["abs_sum"][:200])
    assert drawn["all of one sign"][0] == drawn["all of one sign"][1]


def test_channel_means_are_in_deviations_of_their_scheme(parameters: pd.DataFrame) -> None:
    large = parameters.assign(channel_mean=parameters["channel_mean"] * 1e6)
    for table in (parameters, large):
        across, up = lines(AGAINST_MEAN(table))["batch_norm"]
        means = parameters["channel_mean"][200:].to_numpy()
        np.testing.assert_allclose(across, means / means.std())
        np.testing.assert_array_equal(up, parameters["abs_sum"][200:])


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


def test_the_matrix_is_sorted_and_in_multiples_of_its_mean() -> None:
    matrix = np.outer([1.0, 3.0], [2.0, 1.0, 4.0])
    out_channel, in_channel = (axis.ravel() for axis in np.indices(matrix.shape))
    table = pd.DataFrame({"layer": "a", "out_channel": out_channel, "in_channel": in_channel})
    table["gradient"] = matrix.ravel()
    (mesh,) = PAIRS(table).collections
    np.testing.assert_allclose(mesh.get_array(), np.outer([3, 1], [4, 2, 1]) / matrix.mean())
    with pytest.raises(ValueError, match="draw one matrix"):
        PAIRS(pd.concat([table, table.assign(layer="b")]))


def test_channel_gradients_have_their_median_as_a_line() -> None:
    table = pd.DataFrame({"scheme": "none", "order": [1] * 3 + [2] * 3, "gradient": [-1.0, 2, 9, 0, -4, 5]})
    drawn = lines(PLOTS["channel_gradients"](table))
    assert drawn["none, median"] == ([1, 2], [2, 4])
    np.testing.assert_array_equal(drawn["none"][1], [1, 2, 9, np.nan, 4, 5])


def test_contributions_add_up_from_the_largest_mean_on() -> None:
    table = pd.DataFrame({"scheme": "none", "layer": "a", "mean": [0.1, -3.0, 1.0], "share": [0.1, 0.6, 0.3]})
    across, up = lines(ChannelContributions.plot(table))["none"]
    np.testing.assert_allclose(across, [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(up, [0, 0.6, 0.9, 1])


@pytest.mark.parametrize(
    "draw",
    [
        GradientSums.plot,
        SUMS_OF_PARAMETERS,
        AGAINST_MEAN,
        SUMMANDS,
        PAIRS,
        PLOTS["channel_gradients"],
        ChannelContributions.plot,
    ],
)
def test_tables_without_the_columns_are_refused(draw: Callable[[pd.DataFrame], Axes]) -> None:
    with pytest.raises(ValueError, match="needs the columns"):
        draw(pd.DataFrame({"other": [1]}))


def test_figures_can_be_put_on_a_page(sums: pd.DataFrame, parameters: pd.DataFrame) -> None:
    for axes in (GradientSums.plot(sums), SUMS_OF_PARAMETERS(parameters)):
        assert "<svg" in inline_svg(axes, name="a", description="b")
