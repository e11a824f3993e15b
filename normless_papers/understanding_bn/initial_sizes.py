"""Bjorck et al., at initialization: gradients (figure 2), moments by depth (3), activations (13 and 14)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import PLOTS, histogram, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Seeds
from normless_papers.claims import Estimate, over_draws
from normless_papers.probes.histograms import peak_counts
from normless_papers.understanding_bn.initializations import (
    HISTOGRAM_CHANNELS,
    HISTOGRAM_LAYERS,
    INKS,
    WEIGHT_55,
    Draw,
    Initializations,
    MeasuredDraws,
    decades,
    pass_of,
)

# Layers over which growth is fitted, without the stem's neighbours and the classifier.
_FITTED = (8, 109)
_MOMENTS = {"abs_mean": "|mean|", "variance": "variance"}


@artefact("understanding-bn/figure-2", basis="measurement")
def gradients_of_layer_55(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)

    def sizes(draw: Draw) -> pd.DataFrame:
        gradients = pass_of(draw)["gradients"]
        return gradients[gradients["parameter"] == WEIGHT_55]

    def quantities(facts: MeasuredDraws) -> dict[str, Estimate | float]:
        without, with_norm = facts.both
        ratio = without["mean_abs"] / with_norm["mean_abs"]
        return {
            "magnitude_ratio_unnormalized_to_normalized": over_draws(ratio),
            "log10 of that ratio": decades(ratio),
            "kurtosis without batch norm": over_draws(without["kurtosis"]),
            "kurtosis with batch norm": over_draws(with_norm["kurtosis"]),
            "largest |gradient| without batch norm": over_draws(without["max_abs"]),
            "largest |gradient| with batch norm": over_draws(with_norm["max_abs"]),
        }

    return setting.evidence(
        sizes,
        quantities=quantities,
        draw=lambda: setting.side_by_side(_histogram),
        layer=55,
        parameter=WEIGHT_55,
    )


def _histogram(draw: Draw, axes: Axes, title: str) -> None:
    label = "gradient of a weight of layer 55 (nats per unit)"
    counts = pass_of(draw)["gradient_histogram"].assign(scheme=INKS[draw.batch_norm])
    histogram(counts, axes, names="none", log="y", x_marks=[0], title=title, x_label=label)


@artefact("understanding-bn/figure-3", basis="measurement")
def moments_against_depth(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: _fits(pass_of(draw)["moments"]),
        quantities=_growth,
        draw=lambda: _moments(setting.shown(lambda draw: pass_of(draw)["moments"])),
        layers=f"{_FITTED[0]} to {_FITTED[1]}",
        moments="of the weight layers' outputs, before a norm",
    )


def _growth(facts: MeasuredDraws) -> dict[str, Estimate | float]:
    """Return the published scale, and the growth of each moment over layers."""
    without, with_norm = facts.both
    quantities: dict[str, Estimate | float] = {
        "largest_output_channel_scale": over_draws(10 ** without["log10_scale"])
    }
    for name in _MOMENTS.values():
        for kind, rows in (("without", without), ("with", with_norm)):
            quantities[f"decades of {name} over 100 layers {kind} batch norm"] = over_draws(rows[f"{name}_decades"])
        straight = over_draws(without[f"{name}_straightness"])
        quantities[f"R² of log₁₀ {name} against the layer without batch norm"] = straight
    return quantities


def _fits(moments: pd.DataFrame) -> pd.DataFrame:
    """Fit decades over 100 layers to each moment, with the line's R², and find the scale of the largest layer."""
    rows = moments[moments["order"].between(*_FITTED)]
    fits: dict[str, float] = {}
    layers = rows["order"].to_numpy(float)
    for moment, name in _MOMENTS.items():
        logarithms = np.log10(rows[moment].to_numpy(float))
        slope, _ = np.polyfit(layers, logarithms, 1)
        fits[f"{name}_decades"] = 100 * float(slope)
        fits[f"{name}_straightness"] = float(np.corrcoef(layers, logarithms)[0, 1] ** 2)
    scale = np.sqrt(np.square(rows["abs_mean"]) + rows["variance"])
    fits["log10_scale"] = float(np.log10(scale.max()))
    return pd.DataFrame([fits])


def _moments(first: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    means = {"y": "abs_mean", "band": "abs_mean_spread", "y_label": "mean of |channel mean|"}
    PLOTS["activations"](first, panels[0], title="Channel means", **means)
    PLOTS["activations"](first, panels[1], title="Channel variances")
    return panels[0]


_SHOWN = 0


def _channels(draw: Draw) -> pd.DataFrame:
    """Return by layer |mean|, also in deviations, the number of modes, and the share of unimodal channels."""
    tables = pass_of(draw)
    table = tables["moments"].set_index("order").loc[list(HISTOGRAM_LAYERS), ["abs_mean", "variance"]]
    table["relative_mean"] = table["abs_mean"] / np.sqrt(table["variance"])
    peaks = peak_counts(tables["activations"]).set_index("order")["peaks"].astype(float).groupby(level="order")
    table["modes"], table["unimodal"] = peaks.mean(), peaks.agg(lambda counts: float((counts == 1).mean()))
    return table.rename_axis("layer").reset_index()


def _figure_of_activations(name: str, *, batch_norm: bool) -> None:
    """Register figure 13, without batch norm, or figure 14, with it."""

    @artefact(f"understanding-bn/{name}", basis="measurement")
    def measure(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
        setting = Initializations(context, data, batch_size, draws)
        return setting.evidence(
            _channels,
            draw=lambda: _histograms(
                setting.shown(lambda draw: pass_of(draw)["activations"], batch_norm=(batch_norm,)),
            ),
            layers=list(HISTOGRAM_LAYERS),
            channels=f"{HISTOGRAM_CHANNELS[0]} to {HISTOGRAM_CHANNELS[-1]} of each layer",
        )


def _histograms(counts: pd.DataFrame) -> Axes:
    panels = new_panels(2, 2, height=2.6)
    for axes, layer in zip(panels, HISTOGRAM_LAYERS, strict=True):
        rows = counts[(counts["order"] == layer) & (counts["channel"] == _SHOWN)]
        histogram(rows, axes, names="none", x_marks=[0], title=f"Layer {layer}", x_label="activation before ReLU")
    return panels[0]


_figure_of_activations("figure-13", batch_norm=False)
_figure_of_activations("figure-14", batch_norm=True)
