"""The plots of moments, histograms, logits, classes, landscapes and rates draw their tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from PIL import Image

from normless_lab.plots import PLOTS, Plot, histogram, save_png, shades, svg_text
from normless_papers.plots import GRADIENT_BY_CLASS
from normless_papers.understanding_bn.architecture_rates import TRIALS
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


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return [float(x) for x in found.get_xdata()], [float(y) for y in found.get_ydata()]


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
        order, values = line(axes, str(scheme))
        assert order == list(rows["order"])
        np.testing.assert_allclose(values, rows[moment])
    assert axes.get_yscale() == "log"
    assert {text.get_text() for text in axes.texts} >= {"xavier", "batch_norm"}


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
    assert [float(one.get_xdata()[0]) for name, one in points if name == "none"] == [1e-3, 3e-3]
    assert [float(one.get_xdata()[0]) for name, one in points if name == "none, hollow"] == [1e-2]
    (hollow,) = [one for name, one in points if name == "batch_norm, hollow"]
    assert hollow.get_markerfacecolor() != hollow.get_markeredgecolor()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["none", "batch norm"]
    ends = {round(segment[0][0], 9) for one in axes.containers for segment in one.lines[2][0].get_segments()}  # type: ignore[attr-defined]
    assert 5e-4 in ends
