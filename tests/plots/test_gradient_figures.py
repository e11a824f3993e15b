"""Figures of gradient sums and channels draw the numbers they were given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless.plots.probes.channel_contributions import contributions_by_channel_mean
from normless.plots.probes.channel_gradients import channel_gradients_by_layer
from normless.plots.probes.channel_pairs import channel_pair_matrix
from normless.plots.probes.gradient_scatter import gradient_against_channel_mean, sums_of_parameters
from normless.plots.probes.gradient_sums import SUMS, gradient_sums_of_layers, input_independence_against_layer
from normless.plots.probes.summand_histogram import summand_histogram
from normless.plots.save import inline_svg

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
    axes = input_independence_against_layer(sums)
    drawn = lines(axes)
    assert drawn["xavier"] == ([1, 2, 3], [0.4] * 3)
    assert drawn["batch_norm"][1] == [0.01] * 3
    assert drawn["random signs"][1] == [0.005, 0.01, 0.015]
    assert axes.get_yscale() == "log"


def test_a_layer_has_its_four_sums_from_left_to_right(sums: pd.DataFrame) -> None:
    axes = gradient_sums_of_layers(sums, [1, 3])
    drawn = lines(axes)
    assert set(drawn) == {"xavier 1", "xavier 3", "batch_norm 1", "batch_norm 3"}
    assert drawn["xavier 3"][1] == [1e-3, 7e-4, 5e-4, 4e-4]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(SUMS.values())
    with pytest.raises(ValueError, match="layers 7 needs at least one row"):
        gradient_sums_of_layers(sums, [7])


def test_parameters_are_points_below_the_diagonal(parameters: pd.DataFrame) -> None:
    drawn = lines(sums_of_parameters(parameters))
    np.testing.assert_array_equal(drawn["xavier"][1], parameters["abs_sum"][:200])
    assert drawn["all of one sign"][0] == drawn["all of one sign"][1]


def test_channel_means_are_in_deviations_of_their_scheme(parameters: pd.DataFrame) -> None:
    large = parameters.assign(channel_mean=parameters["channel_mean"] * 1e6)
    for table in (parameters, large):
        across, up = lines(gradient_against_channel_mean(table))["batch_norm"]
        means = parameters["channel_mean"][200:].to_numpy()
        np.testing.assert_allclose(across, means / means.std())
        np.testing.assert_array_equal(up, parameters["abs_sum"][200:])


def test_histograms_hold_all_summands_that_are_not_zero() -> None:
    values = np.concatenate([np.zeros(50), DRAW.normal(size=150)])
    table = pd.DataFrame({"parameter": "1,2", "chosen": "largest", "summand": values})
    axes = summand_histogram(table, bins=9)
    shares = lines(axes)["largest (1,2), 25% zero"][1]
    assert len(shares) == 9
    assert sum(shares) == pytest.approx(1)
    with pytest.raises(ValueError, match="at least one bin, got 0"):
        summand_histogram(table, bins=0)


def test_the_matrix_is_sorted_and_in_multiples_of_its_mean() -> None:
    matrix = np.outer([1.0, 3.0], [2.0, 1.0, 4.0])
    out_channel, in_channel = (axis.ravel() for axis in np.indices(matrix.shape))
    table = pd.DataFrame({"layer": "a", "out_channel": out_channel, "in_channel": in_channel})
    table["gradient"] = matrix.ravel()
    (image,) = channel_pair_matrix(table).get_images()
    np.testing.assert_allclose(image.get_array(), np.outer([3, 1], [4, 2, 1]) / matrix.mean())
    with pytest.raises(ValueError, match="of one layer, got those of a, b"):
        channel_pair_matrix(pd.concat([table, table.assign(layer="b")]))


def test_channel_gradients_have_their_median_as_a_line() -> None:
    table = pd.DataFrame({"scheme": "none", "order": [1] * 3 + [2] * 3, "gradient": [-1.0, 2, 9, 0, -4, 5]})
    drawn = lines(channel_gradients_by_layer(table))
    assert drawn["none, median"] == ([1, 2], [2, 4])
    np.testing.assert_array_equal(drawn["none, channels"][1], [1, 2, 9, np.nan, 4, 5])


def test_contributions_add_up_from_the_largest_mean_on() -> None:
    table = pd.DataFrame({"scheme": "none", "layer": "a", "mean": [0.1, -3.0, 1.0], "share": [0.1, 0.6, 0.3]})
    across, up = lines(contributions_by_channel_mean(table))["none"]
    np.testing.assert_allclose(across, [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(up, [0, 0.6, 0.9, 1])


@pytest.mark.parametrize(
    "draw",
    [
        input_independence_against_layer,
        lambda table: gradient_sums_of_layers(table, [1]),
        sums_of_parameters,
        gradient_against_channel_mean,
        summand_histogram,
        channel_pair_matrix,
        channel_gradients_by_layer,
        contributions_by_channel_mean,
    ],
)
def test_tables_without_the_columns_are_refused(draw: Callable[[pd.DataFrame], Axes]) -> None:
    with pytest.raises(ValueError, match="needs the columns"):
        draw(pd.DataFrame({"other": [1]}))


def test_figures_can_be_put_on_a_page(sums: pd.DataFrame, parameters: pd.DataFrame) -> None:
    for axes in (input_independence_against_layer(sums), sums_of_parameters(parameters)):
        assert "<svg" in inline_svg(axes, name="a", description="b")
