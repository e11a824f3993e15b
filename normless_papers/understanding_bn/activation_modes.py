"""Means and modes of channels' activations without batch norm and with it (figures 13 and 14)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots import histogram, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.probes import peak_counts
from normless_papers.stated_claims import Test, Tests, exceeds
from normless_papers.understanding_bn.initial_pass import HISTOGRAM_CHANNELS, HISTOGRAM_LAYERS, pass_of
from normless_papers.understanding_bn.initializations import Draw, Initializations, Measured, decades

_DEEP = (81, 83)
_SHOWN = 0


_COLUMNS = ["abs_mean", "relative_mean", "modes", "unimodal"]


def _unnormalized(facts: Measured) -> Tests:
    layers = facts.pivoted("layer", _COLUMNS, batch_norm=False)
    means, modes = layers["abs_mean"], layers["modes"]
    return {
        **{
            f"Means of channels are farther from 0 in layer {later} than in layer {earlier} (log₁₀ of the ratio "
            "of |mean| above 0).": exceeds(decades(means[later] / means[earlier]), 0.0)
            for earlier, later in ((9, 45), (45, 83))
        },
        "Histograms in layers 81 and 83 have more modes on average than those in layer 9.": exceeds(
            (modes[81] + modes[83]) / 2, modes[9]
        ),
    }


@artefact("understanding-bn/figure-13", basis="measurement", checks=_unnormalized)
def unnormalized_activations(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 13: without batch norm channels have increasingly nonzero means and several modes in deeper layers."""
    return _evidence(Initializations(context, data, batch_size, draws), batch_norm=False)


def _normalized(facts: Measured) -> Tests:
    without, with_norm = (facts.pivoted("layer", _COLUMNS, batch_norm=kind) for kind in (False, True))
    tests: dict[str, Test] = {}
    for layer in HISTOGRAM_LAYERS:
        tests |= {
            f"Layer {layer} with batch norm: most channels are unimodal, more than half of them.": exceeds(
                with_norm["unimodal"][layer], 0.5
            ),
            f"Layer {layer} with batch norm: |mean| before the norm is on average less than a standard deviation "
            "of the channel from 0.": exceeds(1.0, with_norm["relative_mean"][layer]),
        }
    tests |= {
        f"Layer {layer}: |mean| in standard deviations is larger without batch norm.": exceeds(
            without["relative_mean"][layer], with_norm["relative_mean"][layer]
        )
        for layer in _DEEP
    }
    return tests


@artefact("understanding-bn/figure-14", basis="measurement", checks=_normalized)
def normalized_activations(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 14: with batch norm channels are unimodal with means near zero, deep layers included."""
    return _evidence(Initializations(context, data, batch_size, draws), batch_norm=True)


def _channels(draw: Draw) -> pd.DataFrame:
    """By layer |mean|, also in deviations, modes, and the share of channels with one mode."""
    tables = pass_of(draw)
    table = tables["moments"].set_index("order").loc[list(HISTOGRAM_LAYERS), ["abs_mean", "variance"]]
    table["relative_mean"] = table["abs_mean"] / np.sqrt(table["variance"])
    peaks = peak_counts(tables["activations"]).set_index("order")["peaks"].astype(float).groupby(level="order")
    table["modes"], table["unimodal"] = peaks.mean(), peaks.agg(lambda counts: float((counts == 1).mean()))
    return table.rename_axis("layer").reset_index()


def _evidence(setting: Initializations, *, batch_norm: bool) -> Evidence:
    return setting.evidence(
        _channels,
        "Activations are outputs of convolutions, before a norm: after it their means would be 0 by definition.",
        "`relative_mean` is the mean over channels of |mean| over the root of the mean variance: in their own "
        "units means of the unnormalized network need not grow with depth, since deviations grow as well.",
        f"The figure shows channel {_SHOWN} of the first draw; the paper chose channels that it calls "
        "representative.",
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
