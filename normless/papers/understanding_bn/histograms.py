"""Histograms of channels' activations without batch norm and with it (figures 13 and 14)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, over_draws
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Draw, Initializations, conv_path
from normless.papers.verdict import Check, Estimate, larger
from normless.probes.forward.histograms import ActivationHistograms, peak_counts
from normless.probes.forward.moments import ChannelMoments
from normless.probes.watching.observe import observe
from normless.report.axes import new_panels
from normless.report.probes.value_histograms import value_histograms

LAYERS = (9, 45, 81, 83)
# Every stage has at least so many; all of them would be slow and say the same.
_CHANNELS = tuple(range(16))
_SHOWN = 0


@artefact("understanding-bn/figure-13", basis="measurement")
def unnormalized_activations(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 13: without batch norm channels have increasingly nonzero means and several modes in deeper layers."""
    setting = Initializations(context, data, batch_size, draws)
    measured, shown = _channels(setting)
    bare = _by_layer(measured, batch_norm=False)
    modes = bare["modes"]
    deep = (modes[81] + modes[83]) / 2
    checks = (
        larger(
            "Means of channels in layer 83 are more than ten times those in layer 9 (log₁₀ of the ratio of |mean|).",
            decades_over_draws(bare["abs_mean"][83] / bare["abs_mean"][9]),
            Estimate(1.0),
        ),
        larger(
            "Histograms in layers 81 and 83 have more modes on average than those in layer 9.",
            over_draws(deep - modes[9]),
            Estimate(0.0),
        ),
        larger("They have more than 1.25 modes on average: some are multimodal.", over_draws(deep), Estimate(1.25)),
    )
    return _evidence(setting, measured, shown, checks, batch_norm=False)


@artefact("understanding-bn/figure-14", basis="measurement")
def normalized_activations(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 14: with batch norm channels are unimodal with means near zero, deep layers included."""
    setting = Initializations(context, data, batch_size, draws)
    measured, shown = _channels(setting)
    bare, normalized = (_by_layer(measured, batch_norm=kind) for kind in (False, True))
    checks: list[Check] = []
    for layer in LAYERS:
        checks.append(
            larger(
                f"Layer {layer} with batch norm: histograms have fewer than 1.25 modes on average.",
                Estimate(1.25),
                over_draws(normalized["modes"][layer]),
            )
        )
        checks.append(
            larger(
                f"Layer {layer} with batch norm: |mean| before the norm is on average less than a standard deviation "
                "of the channel from 0.",
                Estimate(1.0),
                over_draws(normalized["relative_mean"][layer]),
            )
        )
        checks.append(
            larger(
                f"Layer {layer}: |mean| in standard deviations is larger without batch norm.",
                over_draws(bare["relative_mean"][layer]),
                over_draws(normalized["relative_mean"][layer]),
            )
        )
    return _evidence(setting, measured, shown, tuple(checks), batch_norm=True)


def _channels(setting: Initializations) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By network, draw and layer |mean|, that in deviations, and modes; and the histograms of the first draw."""
    paths, shown = [conv_path(layer) for layer in LAYERS], []

    def channels(draw: Draw) -> pd.DataFrame:
        moments, histograms = ChannelMoments(), ActivationHistograms(layers=paths, channels=_CHANNELS)
        observe(draw.model, [moments, histograms], draw.inputs)
        counts = histograms.table()
        if draw.number == 0:
            shown.append(counts.assign(batch_norm=draw.batch_norm))
        table = moments.table().set_index("order").loc[list(LAYERS), ["abs_mean", "variance"]]
        table["relative_mean"] = table["abs_mean"] / np.sqrt(table["variance"])
        table["modes"] = peak_counts(counts).groupby("order")["peaks"].mean().astype(float)
        return table.rename_axis("layer").reset_index()

    return setting.measured(channels), pd.concat(shown)


def _by_layer(measured: pd.DataFrame, *, batch_norm: bool) -> pd.DataFrame:
    """Columns (quantity, layer), a row per draw."""
    chosen = measured[measured["batch_norm"] == batch_norm]
    return chosen.pivot(index="draw", columns="layer", values=["abs_mean", "relative_mean", "modes"])


def _evidence(
    setting: Initializations,
    measured: pd.DataFrame,
    shown: pd.DataFrame,
    checks: tuple[Check, ...],
    *,
    batch_norm: bool,
) -> Evidence:
    return Evidence(
        measured,
        checks,
        setting.setup(layers=list(LAYERS), channels=f"{_CHANNELS[0]} to {_CHANNELS[-1]} of each layer"),
        draw=lambda: _histograms(shown[shown["batch_norm"] == batch_norm], batch_norm),
        remarks=(
            "Activations are outputs of convolutions, before a norm: behind it their means would be 0 by definition.",
            "`relative_mean` is the mean over channels of |mean| over the root of the mean variance: in their own "
            "units means of the unnormalized network need not grow with depth, since deviations grow as well.",
            f"The figure shows channel {_SHOWN} of the first draw; the paper chose channels that it calls "
            "representative.",
        ),
    )


def _histograms(counts: pd.DataFrame, batch_norm: bool) -> Axes:
    panels = new_panels(2, 2, height=2.6)
    scheme = "batch_norm" if batch_norm else "none"
    for axes, layer in zip(panels, LAYERS, strict=True):
        rows = counts[(counts["order"] == layer) & (counts["channel"] == _SHOWN)]
        value_histograms(rows.assign(scheme=scheme), axes, title=f"Layer {layer}", across="activation before ReLU")
    return panels[0]
