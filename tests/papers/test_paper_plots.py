"""The plots of probes, artefacts and training runs draw their tables."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from drawn import lines_of, names_in
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import StepPatch
from PIL import Image

from normless_lab.plots import (
    PLOTS,
    SCHEME_INKS,
    Plot,
    accuracy_against_epoch,
    histogram,
    inks_of,
    lines,
    new_panels,
    optimum_against,
    save_png,
    series_ink,
    shades,
    svg_text,
)
from normless_papers.gamma.analysed_networks import draw_stream
from normless_papers.plots import DIFFERENCES, GRADIENT_BY_CLASS, TEST_ERRORS, beside_published
from normless_papers.probes import GradientSums
from normless_papers.understanding_bn.architecture_rates import TRIALS
from normless_papers.understanding_bn.equations import NOISE
from normless_papers.understanding_bn.gradient_summands import SUM_SYMBOLS, SUMMANDS, draw_sums
from normless_papers.understanding_bn.matrix_products import CONDITION, LARGEST, draw_singular_values
from normless_papers.understanding_bn.single_updates import LOSSES

ORDER = np.arange(1, 12)
BLOCK = np.arange(1, 9)
ACTIVATIONS = pd.concat(
    pd.DataFrame({"scheme": scheme, "order": ORDER, "variance": base**ORDER, "abs_mean": 0.1 * base**ORDER}).assign(
        variance_spread=0.4 * base**ORDER, abs_mean_spread=0.2 * base**ORDER
    )
    for scheme, base in (("xavier", 3.0), ("batch_norm", 1.0))
)
ALONG = pd.concat(
    [pd.DataFrame({"point": t, "order": ORDER, "variance": 10.0 ** (t * ORDER)}) for t in (0.0, 0.5, 1.0)]
)
BINS = pd.DataFrame({"low": [-2.0, -1, 0, 1], "high": [-1.0, 0, 1, 2], "density": [0.1, 0.4, 0.3, 0.2]})
LOGITS = pd.DataFrame({"example": [0, 0, 1, 1], "class": [0, 1, 0, 1], "gradient": [0.5, -0.5, 0.2, -0.2]})
CLASSES = pd.DataFrame({"class": [0, 1, 2], "bias_gradient": [0.7, -0.4, -0.3], "mean_abs": [2.0, 0.1, 0.2]}).assign(
    favoured=[True, False, False]
)
LOSS = pd.DataFrame({"point": [0.0, 0.5, 1.0], "loss": [2.0, 20.0, 5000.0], "predicted_loss": [2.0, 1.0, 0.0]})
RATES = pd.DataFrame(
    {"scheme": ["none"] * 3 + ["batch_norm"] * 2, "rate": [1e-3, 1e-2, 3e-3, 1, 4], "diverged": [0, 1, 0, 0, 1]}
)
NOISES = pd.DataFrame(
    {"batch_size": [1, 4] * 2, "learning_rate": [0.1, 0.1, 0.2, 0.2], "noise": [4.0, 1.0, 9.0, 2.0]}
)
NOISES["predicted_noise"] = NOISES["learning_rate"] ** 2 / NOISES["batch_size"]
CONDITIONING = pd.DataFrame({"factors": range(1, 6)})
for name in ("log10_condition", "largest"):
    numbers = {f"mean_{name}": 3.0, f"std_{name}": 0.5, f"predicted_{name}": 2.9}
    CONDITIONING = CONDITIONING.assign(**{key: value * CONDITIONING["factors"] for key, value in numbers.items()})
SUMS = pd.DataFrame(
    {"scheme": scheme, "order": order, "sum_abs": 1e-3, "abs_sum": ratio * 1e-3, "input_independence": ratio}
    | {"sum_b_abs_sum_xy": 5e-4, "sum_xy_abs_sum_b": 7e-4, "predicted_for_random_signs": 0.005 * order}
    for scheme, ratio in (("xavier", 0.4), ("batch_norm", 0.01))
    for order in (1, 2, 3)
)
OPTIMA = pd.DataFrame(
    {
        "method": ["batch_norm", "batch_norm", "bare", "bare"],
        "batch_size": [256, 16, 16, 256],
        "mean": [94.0, 93.0, 90.0, 10.0],
        "deviation": [0.5, math.nan, 0.1, 0.0],
        "trainable": [True, True, True, False],
    }
)
INKS = inks_of({"batch_norm": "batch_norm", "bare": "none", "again": "none"})
POINTS = shades(["0.0", "0.5", "1.0"])
ALONG_UPDATE = Plot("lines", x="order", y="variance", by="point", inks=POINTS, log="y", title="T")
OPTIMUM = partial(optimum_against, title="T", y_label="%", series="method", across="batch_size", inks=INKS)
MEANS_BY_SCHEME = partial(PLOTS["activations"], y="abs_mean", band="abs_mean_spread")

# A line of a figure: its table, its label, and the columns that it has for x and y, with a query for its rows.
FIGURES: dict[str, tuple[Any, pd.DataFrame, str, str]] = {
    "variances": (PLOTS["activations"], ACTIVATIONS, "xavier", "order variance scheme=='xavier'"),
    "means": (MEANS_BY_SCHEME, ACTIVATIONS, "batch_norm", "order abs_mean scheme=='batch_norm'"),
    "along": (ALONG_UPDATE, ALONG, "0.5", "order variance point==0.5"),
    "histogram": (Plot("histogram", title="Bins"), BINS, "", ""),
    "logits": (PLOTS["logit_matrix"], LOGITS, "", ""),
    "bias": (PLOTS["logits"], CLASSES, "", ""),
    "classes": (GRADIENT_BY_CLASS, CLASSES, "", ""),
    "landscape": (LOSSES, LOSS, "", ""),
    "rates": (TRIALS, RATES, "", ""),
    "noise": (NOISE, NOISES, "α = 0.2, measured", "batch_size noise learning_rate==0.2"),
    "predicted noise": (NOISE, NOISES, "α = 0.1, predicted", "batch_size predicted_noise learning_rate==0.1"),
    "condition": (CONDITION, CONDITIONING, "measured", "factors mean_log10_condition factors>0"),
    "predicted condition": (CONDITION, CONDITIONING, "predicted", "factors predicted_log10_condition factors>0"),
    "largest": (LARGEST, CONDITIONING, "measured", "factors mean_largest factors>0"),
    "sums": (GradientSums.plot, SUMS, "batch_norm", "order input_independence scheme=='batch_norm'"),
    "random signs": (GradientSums.plot, SUMS, "random signs", "order predicted_for_random_signs scheme=='xavier'"),
    "optima": (OPTIMUM, OPTIMA, "batch_norm", "batch_size mean method=='batch_norm'"),
    "not trained": (OPTIMUM, OPTIMA, "bare, not trained", "batch_size mean mean==10"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_lines_of_its_table_and_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    draw, table, label, line = FIGURES[name]
    before = dict(mpl.rcParams)
    axes = draw(table)
    assert draw(table).get_figure() is not axes.get_figure()
    assert axes.get_title(loc="left").strip()
    assert axes.get_xlabel()
    if label:
        x, y, query = line.split(" ", 2)
        rows = table.query(query).sort_values(x)
        found = lines_of(axes)[label]
        np.testing.assert_allclose(found[0], rows[x])
        np.testing.assert_allclose(found[1], rows[y])
    with Image.open(save_png(axes, tmp_path / "figure.png", dpi=60)) as image:
        assert np.unique(np.asarray(image.convert("L"))).size > 2
    assert "<svg" in svg_text(axes)
    assert dict(mpl.rcParams) == before
    with pytest.raises(ValueError, match="lacks"):
        draw(pd.DataFrame({"nothing": [1]}))
    with pytest.raises(ValueError, match=r"is empty|at least one row"):
        draw(table.iloc[:0])


@pytest.mark.parametrize("logarithmic", [False, True])
def test_histograms_are_drawn_at_their_edges(logarithmic: bool) -> None:
    axes = histogram(BINS.assign(scheme="none"), log="y" * logarithmic)
    values, edges, _ = axes.patches[0].get_data()
    np.testing.assert_allclose(values, BINS["density"])
    np.testing.assert_allclose(edges, [-2, -1, 0, 1, 2])
    assert axes.get_yscale() == ("log" if logarithmic else "linear")


def test_diverged_rates_are_hollow_and_a_bar_reaches_the_largest_stable_one() -> None:
    axes = TRIALS(RATES)
    points = [(container.get_label(), container.lines[0]) for container in axes.containers]
    assert [float(point.get_xdata()[0]) for name, point in points if name == "none"] == [1e-3, 3e-3]
    assert [float(point.get_xdata()[0]) for name, point in points if name == "none, hollow"] == [1e-2]
    (hollow,) = [point for name, point in points if name == "batch_norm, hollow"]
    assert hollow.get_markerfacecolor() != hollow.get_markeredgecolor()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["none", "batch norm"]
    ends = {round(segment[0][0], 9) for artist in axes.containers for segment in artist.lines[2][0].get_segments()}
    assert 5e-4 in ends


def blocks_table(names: list[str]) -> pd.DataFrame:
    table = pd.DataFrame({"block": BLOCK, "name": [f"blocks.{index}" for index in BLOCK], "equation": 11})
    for offset, column in enumerate(names):
        table[column] = 0.01 * BLOCK * (offset + 1)
        table[f"predicted_{column}"] = table[column] * 1.01
    return table


@pytest.mark.parametrize("probe", ["signal", "covariance"])
def test_measured_points_and_predicted_lines_are_the_table(probe: str) -> None:
    names = PLOTS[probe].arguments["measured"]
    table = blocks_table(list(names))
    axes = PLOTS[probe](table.sample(frac=1, random_state=0))
    drawn = lines_of(axes)
    for column, name in names.items():
        assert drawn[f"{name}, measured"] == (list(table["block"]), list(table[column]))
        np.testing.assert_array_equal(drawn[f"{name}, predicted"][1], table[f"predicted_{column}"])
    assert set(names_in(axes)) == set(names.values())


@pytest.mark.parametrize("expected", [True, False])
def test_the_stream_and_its_resets(expected: bool) -> None:
    table = blocks_table(["stream_second_moment"])
    table.loc[[0, 4], "equation"] = [15, 17]
    table["expected_stream_second_moment"] = table["stream_second_moment"] * 2 if expected else np.nan
    axes = draw_stream(table)
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_label() == "_mark"] == [1, 5]
    assert lines_of(axes)["γ alone, measured"][1] == list(table["stream_second_moment"])
    assert ("all weights" in names_in(axes)) is expected
    assert [label.get_text() for label in axes.get_xticklabels()] == list(table["name"])
    many = draw_stream(pd.concat([table.assign(block=table["block"] + more) for more in (0, 8, 16)]))
    assert len(many.get_xticklabels()) == 6


def test_a_layer_has_its_four_sums_from_left_to_right() -> None:
    axes = draw_sums(SUMS, [1, 3])
    drawn = lines_of(axes)
    assert set(drawn) == {"xavier 1", "xavier 3", "batch_norm 1", "batch_norm 3"}
    assert drawn["xavier 3"][1] == [1e-3, 7e-4, 5e-4, 4e-4]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(SUM_SYMBOLS.values())


def test_histograms_hold_all_summands_that_are_not_zero() -> None:
    values = np.concatenate([np.zeros(50), np.random.default_rng(0).normal(size=150)])
    axes = SUMMANDS(pd.DataFrame({"parameter": "1,2", "chosen": "largest", "summand": values}), bins=9)
    assert axes.get_legend_handles_labels()[1] == ["largest (1,2), 25% zero"]
    shares, edges, _ = axes.patches[0].get_data()
    assert (len(shares), edges[0], edges[-1]) == (9, -3, 3)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(("of", "name"), [("squares", "squared singular value"), ("values", "singular value")])
def test_histograms_hold_every_value_and_the_law_lies_over_them(of: Any, name: str) -> None:
    draw = np.random.default_rng(0)
    values = pd.concat(
        pd.DataFrame({"factors": factors, "run": run, "unit_squared": draw.random(200) * factors})
        for factors in (1, 2)
        for run in (0, 1, 2)
    )
    x = np.linspace(2, 0.001, 20)
    law = pd.concat(
        pd.DataFrame({"factors": factors, "of": kind, "angle": 1 / x, "x": x, "density": np.arange(20.0) + factors})
        for factors in (1, 2)
        for kind in ("squares", "values")
    )
    axes = draw_singular_values(values, law, of=of)
    stairs = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    assert len(stairs) == 12
    assert [float((heights * np.diff(edges)).sum()) for heights, edges, _ in stairs] == pytest.approx([1.0] * 12)
    shown = values["unit_squared"] if of == "squares" else np.sqrt(values["unit_squared"])
    assert axes.get_xlim()[1] >= shown.max()
    np.testing.assert_array_equal(lines_of(axes)["_limiting density"][1], np.arange(20.0) + 2)
    assert names_in(axes) == ["factors: 1", "factors: 2", "limiting density"]
    assert axes.get_xlabel() == f"{name} (entries of variance 1/N)"


def test_panels_lie_on_one_figure_row_by_row() -> None:
    panels = new_panels(3, 2, width=2, height=1)
    (figure,) = {id(axes.get_figure()): axes.get_figure() for axes in panels}.values()
    assert figure is not None
    assert tuple(figure.get_size_inches()) == (6, 2)
    assert [axes.get_subplotspec().rowspan.start for axes in panels] == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


def test_curves_are_the_means_over_replicates_in_percent() -> None:
    epochs = pd.DataFrame(
        {"network": name, "epoch": epoch, "test_accuracy": 0.1 * epoch + shift, "training_accuracy": 0.2 * epoch}
        for name, shifts in (("first", (0.0, 0.1)), ("second", (0.0,)))
        for shift in shifts
        for epoch in (1, 2, 3)
    )
    inks = {"first": series_ink(0), "second": series_ink(1)}
    axes = accuracy_against_epoch(epochs, series="network", inks=inks, title="Runs")
    drawn = lines_of(axes)
    for name, percent in (("first, test", 15), ("second, test", 10), ("first, training", 20)):
        slope = 20 if "training" in name else 10
        assert drawn[f"{name} accuracy"][1] == pytest.approx([percent, percent + slope, percent + 2 * slope])
    assert "dashed" in axes.get_xlabel()
    assert names_in(axes) == ["first", "second"]


PERCENT = st.floats(0, 100)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(PERCENT, st.one_of(st.just(math.nan), PERCENT), PERCENT), min_size=1, max_size=6))
def test_every_method_has_its_row(values: list[tuple[float, float, float]]) -> None:
    table = pd.DataFrame(values, columns=["measured", "deviation", "published"])
    table["name"] = [f"method_{place}" for place in range(len(values))]
    figure = beside_published(table, TEST_ERRORS, "measured", "Errors", "percent").get_figure()
    assert figure is not None
    for axes, column in zip(figure.axes, (0, 2), strict=True):
        points = [artist for artist in axes.get_lines() if artist.get_marker() != "|"]
        drawn = [(float(point.get_xdata()[0]), point.get_ydata()[0]) for point in points]  # type: ignore[index,arg-type]
        assert drawn == [(value[column], place) for place, value in enumerate(values)]
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == [f"method {place}" for place in range(len(values))]


def test_bars_are_two_standard_errors_and_unknown_errors_are_hollow() -> None:
    rows = [
        {"l2": "one", "difference": 1.0, "error": 0.25, "model": "a"},
        {"l2": "two", "difference": -2.0, "error": math.nan, "model": "a"},
        {"l2": "one", "difference": math.nan, "error": math.nan, "model": "b"},
    ]
    inks = {"one": SCHEME_INKS["fixup"], "two": SCHEME_INKS["skipinit"]}
    axes = DIFFERENCES(pd.DataFrame(rows), y="l2", inks=inks, title="Title", x_label="points", groups="model")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "one", "two", "b", "one"]
    bars = {str(artist.get_label()): artist for artist in axes.containers}
    segment = bars["one"].lines[2][0].get_segments()[0]  # type: ignore[attr-defined]
    assert segment.tolist() == [[0.5, 1], [1.5, 1]]
    hollow = bars["two, hollow"].lines[0]  # type: ignore[attr-defined]
    assert hollow.get_markerfacecolor() != hollow.get_color()
    assert axes.get_ylim() == (4.5, -0.5)


def test_a_line_per_series_through_its_means_and_a_thin_one_per_run() -> None:
    rows = [
        {"method": method, "hash": f"{method}{run}", "epoch": epoch, "bleu": value}
        for method, values in {"one": (1.0, 3.0), "two": (2.0, math.nan)}.items()
        for run in (0, 1)
        for epoch, value in enumerate((values[0], values[1] + run), start=1)
    ]
    inks = {"one": SCHEME_INKS["fixup"], "two": SCHEME_INKS["skipinit"]}
    axes = lines(pd.DataFrame(rows), x="epoch", y="bleu", by="method", each="hash", inks=inks, title="Title")
    drawn = lines_of(axes)
    assert [name for name in drawn if not name.startswith("_")] == ["one", "two"]
    assert drawn["one"][1] == [1.0, 3.5]
    assert np.isnan(drawn["two"][1]).tolist() == [False, True]
    assert sum(str(line.get_label()) == "_run" for line in axes.lines) == 4
