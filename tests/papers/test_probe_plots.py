"""The plots of probes and artefacts draw their tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from drawn import lines_of, names_in
from matplotlib.patches import StepPatch
from PIL import Image

from normless_lab.plots import PLOTS, Plot, histogram, new_panels, save_png, shades, svg_text
from normless_papers.gamma.analysed_networks import draw_stream
from normless_papers.plots import GRADIENT_BY_CLASS
from normless_papers.probes import GradientSums
from normless_papers.understanding_bn.architecture_rates import TRIALS
from normless_papers.understanding_bn.equations import NOISE
from normless_papers.understanding_bn.gradient_summands import SUM_SYMBOLS, SUMMANDS, draw_sums
from normless_papers.understanding_bn.matrix_products import CONDITION, LARGEST, draw_singular_values
from normless_papers.understanding_bn.single_updates import LOSSES

ORDER = np.arange(1, 12)
MOMENTS = pd.concat(
    [
        pd.DataFrame(
            {"scheme": scheme, "order": ORDER, "variance": base**ORDER, "variance_spread": 0.4 * base**ORDER}
        ).assign(abs_mean=0.1 * base**ORDER, abs_mean_spread=0.2 * base**ORDER)
        for scheme, base in (("xavier", 3.0), ("batch_norm(initialization=xavier)", 1.0))
    ]
)
ALONG = pd.concat(
    [pd.DataFrame({"point": t, "order": ORDER, "variance": 10.0 ** (t * ORDER)}) for t in (0.0, 0.5, 1.0)]
)
BINS = pd.DataFrame({"low": [-2.0, -1, 0, 1], "high": [-1.0, 0, 1, 2], "density": [0.1, 0.4, 0.3, 0.2]})
MATRIX = pd.DataFrame(
    [
        {"example": b, "class": j, "gradient": value}
        for b, row in enumerate([[0.5, -0.5, 0.0], [0.2, 0.3, -0.5]])
        for j, value in enumerate(row)
    ]
)
CLASSES = pd.DataFrame(
    {
        "class": [0, 1, 2],
        "bias_gradient": [0.7, -0.4, -0.3],
        "favoured": [True, False, False],
        "mean_abs": [2.0, 0.1, 0.2],
    }
)
LOSS = pd.DataFrame({"point": [0.0, 0.5, 1.0], "loss": [2.0, 20.0, 5000.0], "predicted_loss": [2.0, 1.0, 0.0]})
RATES = pd.DataFrame(
    {"scheme": ["none"] * 3 + ["batch_norm"] * 2, "rate": [1e-3, 1e-2, 3e-3, 1, 4], "diverged": [0, 1, 0, 0, 1]}
)

PARTS = shades(["0.0", "0.5", "1.0"])
ALONG_UPDATE = Plot("lines", x="order", y="variance", by="point", inks=PARTS, log="y", title="T")
BIN_DENSITIES = Plot("histogram", title="Bins")
BY_SCHEME = {"y": "abs_mean", "band": "abs_mean_spread"}

FIGURES: dict[str, tuple[Plot, pd.DataFrame]] = {
    "moments": (PLOTS["activations"], MOMENTS),
    "along": (ALONG_UPDATE, ALONG),
    "histogram": (BIN_DENSITIES, BINS),
    "logits": (PLOTS["logit_matrix"], MATRIX),
    "bias": (PLOTS["logits"], CLASSES),
    "classes": (GRADIENT_BY_CLASS, CLASSES),
    "landscape": (LOSSES, LOSS),
    "rates": (TRIALS, RATES),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_where_told_and_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    draw, table = FIGURES[name]
    before = dict(mpl.rcParams)
    axes = draw(table)
    given = draw(table).get_figure()
    assert given is not axes.get_figure()
    assert draw(table, axes) is axes
    assert axes.get_title(loc="left").strip()
    assert axes.get_xlabel()
    with Image.open(save_png(axes, tmp_path / "figure.png", dpi=60)) as image:
        assert np.unique(np.asarray(image.convert("L"))).size > 2
    assert "<svg" in svg_text(axes)
    assert dict(mpl.rcParams) == before
    with pytest.raises(ValueError, match="but the table lacks"):
        draw(pd.DataFrame({"nothing": [1]}))
    with pytest.raises(ValueError, match="the table is empty"):
        draw(table.iloc[:0])


@pytest.mark.parametrize("moment", ["variance", "abs_mean"])
def test_moments_are_the_tables_lines_on_a_logarithmic_axis(moment: str) -> None:
    axes = PLOTS["activations"](MOMENTS, **(BY_SCHEME if moment == "abs_mean" else {}))
    for scheme, rows in MOMENTS.groupby("scheme"):
        order, values = lines_of(axes)[str(scheme)]
        assert order == list(rows["order"])
        np.testing.assert_allclose(values, rows[moment])
    assert axes.get_yscale() == "log"
    assert set(names_in(axes)) == {"xavier", "batch_norm"}


@pytest.mark.parametrize("logarithmic", [False, True])
def test_histograms_are_drawn_at_their_edges(logarithmic: bool) -> None:
    axes = histogram(BINS.assign(scheme="none"), log="y" * logarithmic)
    values, edges, _ = axes.patches[0].get_data()
    np.testing.assert_allclose(values, BINS["density"])
    np.testing.assert_allclose(edges, [-2, -1, 0, 1, 2])
    assert axes.get_yscale() == ("log" if logarithmic else "linear")


def test_diverged_rates_are_hollow_and_a_bar_reaches_the_largest_stable_one() -> None:
    axes = TRIALS(RATES)
    points = [(container.get_label(), container.lines[0]) for container in axes.containers]  # type: ignore[attr-defined]
    assert [float(point.get_xdata()[0]) for name, point in points if name == "none"] == [1e-3, 3e-3]
    assert [float(point.get_xdata()[0]) for name, point in points if name == "none, hollow"] == [1e-2]
    (hollow,) = [point for name, point in points if name == "batch_norm, hollow"]
    assert hollow.get_markerfacecolor() != hollow.get_markeredgecolor()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["none", "batch norm"]
    ends = {round(segment[0][0], 9) for artist in axes.containers for segment in artist.lines[2][0].get_segments()}  # type: ignore[attr-defined]
    assert 5e-4 in ends


def blocks_table(names: list[str], count: int = 30) -> pd.DataFrame:
    block = np.arange(1, count + 1)
    table = pd.DataFrame({"block": block, "name": [f"blocks.{index}" for index in block], "equation": 11})
    for offset, name in enumerate(names):
        table[name] = 0.01 * block * (offset + 1)
        table[f"predicted_{name}"] = table[name] * 1.01
    return table


@pytest.mark.parametrize("probe", ["signal", "covariance"])
def test_measured_points_and_predicted_lines_are_the_table(probe: str) -> None:
    draw, names = PLOTS[probe], PLOTS[probe].arguments["measured"]
    table = blocks_table(list(names))
    axes = draw(table.sample(frac=1, random_state=0))
    drawn = lines_of(axes)
    for column, name in names.items():
        assert drawn[f"{name}, measured"] == (list(table["block"]), list(table[column]))
        np.testing.assert_array_equal(drawn[f"{name}, predicted"][1], table[f"predicted_{column}"])
    assert set(names_in(axes)) == set(names.values())


@pytest.mark.parametrize("expected", [True, False])
def test_the_stream_and_its_resets(expected: bool) -> None:
    table = blocks_table(["stream_second_moment"], 8)
    table.loc[[0, 4], "equation"] = [15, 17]
    table["expected_stream_second_moment"] = table["stream_second_moment"] * 2 if expected else np.nan
    axes = draw_stream(table)
    drawn = [line for line in axes.get_lines() if line.get_label() == "_mark"]
    assert [line.get_xdata()[0] for line in drawn] == [1, 5]
    assert lines_of(axes)["γ alone, measured"][1] == list(table["stream_second_moment"])
    assert ("all weights" in names_in(axes)) is expected
    assert [label.get_text() for label in axes.get_xticklabels()] == list(table["name"])
    many = draw_stream(
        pd.concat([table, table.assign(block=table["block"] + 8), table.assign(block=table["block"] + 16)])
    )
    assert len(many.get_xticklabels()) == 6


DRAW = np.random.default_rng(0)


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
    drawn = lines_of(axes)
    assert drawn["xavier"] == ([1, 2, 3], [0.4] * 3)
    assert drawn["batch_norm"][1] == [0.01] * 3
    assert drawn["random signs"][1] == [0.005, 0.01, 0.015]
    assert axes.get_yscale() == "log"


def test_a_layer_has_its_four_sums_from_left_to_right(sums: pd.DataFrame) -> None:
    axes = draw_sums(sums, [1, 3])
    drawn = lines_of(axes)
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


@pytest.fixture
def values() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    tables = [
        pd.DataFrame({"factors": factors, "run": run, "unit_squared": generator.random(200) * factors})
        for factors in (1, 2)
        for run in (0, 1, 2)
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture
def law() -> pd.DataFrame:
    tables = [
        pd.DataFrame(
            {
                "factors": factors,
                "of": of,
                "angle": np.linspace(0.1, 1 / factors, 20),
                "x": np.linspace(factors, 0.001, 20),
                "density": np.linspace(0.01, 5, 20),
            }
        )
        for factors in (1, 2)
        for of in ("squares", "values")
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture
def conditioning() -> pd.DataFrame:
    factors = np.arange(1, 6)
    return pd.DataFrame(
        {
            "factors": factors,
            "mean_log10_condition": 3.0 * factors,
            "std_log10_condition": 0.5,
            "predicted_log10_condition": 2.9 * factors,
            "mean_largest": np.sqrt(factors),
            "std_largest": np.nan,
            "predicted_largest": 1.1 * np.sqrt(factors),
        }
    )


@pytest.mark.parametrize("of", ["squares", "values"])
def test_histograms_hold_every_value_and_the_law_lies_over_them(of, values, law) -> None:  # type: ignore[no-untyped-def]
    axes = draw_singular_values(values, law, of=of)
    stairs = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    assert len(stairs) == 12
    for patch in stairs:
        heights, edges, _ = patch.get_data()
        assert float((heights * np.diff(edges)).sum()) == pytest.approx(1)
    shown = values["unit_squared"] if of == "squares" else np.sqrt(values["unit_squared"])
    assert axes.get_xlim()[1] >= shown.max()
    chosen = law[(law["of"] == of) & (law["factors"] == 2)]
    np.testing.assert_array_equal(lines_of(axes)["_limiting density"][1], chosen["density"])
    assert names_in(axes) == ["factors: 1", "factors: 2", "limiting density"]
    name = "squared singular value" if of == "squares" else "singular value"
    assert axes.get_xlabel() == f"{name} (entries of variance 1/N)"


@pytest.mark.parametrize("quantity", ["log10_condition", "largest"])
def test_error_bars_and_predictions_are_the_table(quantity: str, conditioning: pd.DataFrame) -> None:
    draw = CONDITION if quantity == "log10_condition" else LARGEST
    axes = draw(conditioning)
    np.testing.assert_array_equal(lines_of(axes)["predicted"][1], conditioning[f"predicted_{quantity}"])
    across, measured = lines_of(axes)["measured"]
    np.testing.assert_array_equal(across, conditioning["factors"])
    np.testing.assert_array_equal(measured, conditioning[f"mean_{quantity}"])
    ((_, _, (bars,)),) = axes.containers  # type: ignore[misc]
    deviation = conditioning[f"std_{quantity}"].fillna(0)
    heights = [segment[1, 1] - segment[0, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(heights, 2 * deviation)


def test_panels_lie_on_one_figure_row_by_row() -> None:
    panels = new_panels(3, 2, width=2, height=1)
    assert len(panels) == 6
    (figure,) = {id(axes.get_figure()): axes.get_figure() for axes in panels}.values()
    assert figure is not None
    assert tuple(figure.get_size_inches()) == (6, 2)
    assert [axes.get_subplotspec().rowspan.start for axes in panels] == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


def test_noise_is_drawn_on_its_prediction() -> None:
    table = pd.DataFrame({"batch_size": [1, 4, 1, 4], "learning_rate": [0.1, 0.1, 0.2, 0.2]})
    table["predicted_noise"] = table["learning_rate"] ** 2 / table["batch_size"]
    axes = NOISE(table.assign(noise=table["predicted_noise"] * 1.1))
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axes.get_lines()}
    assert lines["α = 0.2, measured"] == pytest.approx(lines["α = 0.2, predicted"] * 1.1)
    assert lines["α = 0.1, predicted"] == pytest.approx([0.01, 0.0025])
    with pytest.raises(ValueError, match="noise"):
        NOISE(table)
