"""The plots of singular values and of scalar branches draw their tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from normless_lab.plots import lines, save_png, series_ink
from normless_lab.plots.grammars.frame import power
from normless_papers.fixup.updates import SCALAR_STEPS
from normless_papers.understanding_bn.linear_networks import DENSITY, PARAMETRIZATION
from normless_papers.understanding_bn.matrix_products import CONDITION, LARGEST, draw_singular_values


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


@pytest.fixture
def spectra() -> pd.DataFrame:
    index = np.arange(6)
    tables = [
        pd.DataFrame({"spectrum": s, "index": index, "singular_value": 10.0 ** (2 - index), "series": series})
        for series in ("deep", "shallow")
        for s in (0, 1)
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture
def updates() -> pd.DataFrame:
    tables = [
        pd.DataFrame(
            {
                "option": option,
                "layers": layers,
                "blocks": [1, 10, 100],
                "learning_rate": 0.1,
                "update": [-0.09 * height, -0.009 * height, -0.0009 * height],
                "predicted_update": [-0.1 * height, -0.01 * height, -0.001 * height],
            }
        )
        for option, layers, height in (("equal", 2, 2), ("equal", 3, 3), ("zero_last", 2, 1), ("zero_last", 3, 1))
    ]
    return pd.concat(tables, ignore_index=True)


def _line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def _texts(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


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
    np.testing.assert_array_equal(_line(axes, "_limiting density")[1], chosen["density"])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["factors: 1", "factors: 2", "limiting density"]
    name = "squared singular value" if of == "squares" else "singular value"
    assert axes.get_xlabel() == f"{name} (entries of variance 1/N)"


def test_curves_of_the_law_are_the_table(law: pd.DataFrame) -> None:
    squares = law[(law["of"] == "squares") & (law["factors"] == 2)]
    axes = DENSITY(law)
    np.testing.assert_array_equal(_line(axes, "M = 2"), squares[["x", "density"]].iloc[::-1].T)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    np.testing.assert_array_equal(_line(PARAMETRIZATION(law), "M = 2"), squares[["angle", "x"]].T)


@pytest.mark.parametrize("quantity", ["log10_condition", "largest"])
def test_error_bars_and_predictions_are_the_table(quantity: str, conditioning: pd.DataFrame) -> None:
    draw = CONDITION if quantity == "log10_condition" else LARGEST
    axes = draw(conditioning)
    np.testing.assert_array_equal(_line(axes, "predicted")[1], conditioning[f"predicted_{quantity}"])
    across, measured = _line(axes, "measured")
    np.testing.assert_array_equal(across, conditioning["factors"])
    np.testing.assert_array_equal(measured, conditioning[f"mean_{quantity}"])
    ((_, _, (bars,)),) = axes.containers  # type: ignore[misc]
    deviation = conditioning[f"std_{quantity}"].fillna(0)
    heights = [segment[1, 1] - segment[0, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(heights, 2 * deviation)


def test_several_series_stand_side_by_side(conditioning: pd.DataFrame) -> None:
    table = pd.concat([conditioning.assign(series=name) for name in ("gaussian", "signs")])
    axes = CONDITION(table, by="series", apart=0.15)
    first, second = (_line(axes, f"{name}, measured")[0] for name in ("gaussian", "signs"))
    assert (first < second).all()
    assert {"gaussian", "signs"} <= _texts(axes)


def test_single_curves_of_a_series_are_the_table_and_zeros_are_left_out(spectra: pd.DataFrame) -> None:
    spectra.loc[spectra["index"] == 5, "singular_value"] = 0.0
    of = {"x": "index", "y": "singular_value", "each": "spectrum", "summary": None, "log": "y"}
    axes = lines(spectra, by="series", **of)  # type: ignore[arg-type]
    rank, value = _line(axes, "deep")
    assert rank.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(value, [100, 10, 1, 0.1, 0.01, np.nan])
    assert {"deep", "shallow"} <= _texts(axes)
    assert len(axes.get_lines()) == 4
    alone = lines(spectra[spectra["series"] == "deep"], **of)  # type: ignore[arg-type]
    assert _texts(alone) == {"singular value"}


def test_updates_are_the_table_and_coinciding_ends_share_a_label(updates: pd.DataFrame) -> None:
    axes = SCALAR_STEPS(updates)
    blocks, exact = _line(axes, "all equal, m = 3, measured")
    assert blocks.tolist() == [1, 10, 100]
    np.testing.assert_allclose(exact, [2.7, 0.27, 0.027])
    np.testing.assert_allclose(_line(axes, "last is 0, m = 2, predicted")[1], [1, 0.1, 0.01])
    names = {f"{option}, m = {layers}" for option in ("all equal", "last is 0") for layers in (2, 3)}
    assert _texts(axes) == {"|ΔF| / η", *names}


@pytest.mark.parametrize(
    ("draw", "fixture", "column"),
    [
        (DENSITY, "law", "density"),
        (PARAMETRIZATION, "law", "angle"),
        (CONDITION, "conditioning", "std_log10_condition"),
        (LARGEST, "conditioning", "predicted_largest"),
        (SCALAR_STEPS, "updates", "learning_rate"),
    ],
)
def test_figures_draw_where_they_are_told_and_refuse_other_tables(draw, fixture, column, request, tmp_path) -> None:  # type: ignore[no-untyped-def]
    table = request.getfixturevalue(fixture)
    target = Figure().subplots()
    assert draw(table, ax=target) is target
    assert save_png(draw(table), Path(tmp_path) / "figure.png", dpi=50).stat().st_size > 0
    with pytest.raises(ValueError, match=f"lacks {column}"):
        draw(table.drop(columns=column))
    with pytest.raises(ValueError, match="at least one row"):
        draw(table.head(0))


def test_series_have_their_own_colours_and_exponents_read_as_powers() -> None:
    assert len({series_ink(index).light for index in range(8)}) == 8
    assert series_ink(8) == series_ink(0)
    assert [power(10, exponent) for exponent in (0, 15, -3, 2.5)] == ["10⁰", "10¹⁵", "10⁻³", "10²·⁵"]
