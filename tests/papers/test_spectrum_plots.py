"""The plots of singular values and of scalar branches draw their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

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


def _line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


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
