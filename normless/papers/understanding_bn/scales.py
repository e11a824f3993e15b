"""Sizes at initialization: gradients of layer 55 (figure 2), channel moments against depth (figure 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, over_draws, quantity_table, within
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Draw, Initializations, conv_path
from normless.papers.verdict import Estimate, larger
from normless.probes.forward.histograms import ParameterGradientHistograms
from normless.probes.forward.moments import GradientMoments, channel_moments
from normless.probes.watching.observe import observe
from normless.report.axes import new_panels, title_axes
from normless.report.probes.channel_moments import channel_moments_against_depth
from normless.report.probes.value_histograms import value_histograms

# The layers over which growth is fitted: without the stem's neighbourhood and the classifier.
_FITTED = (8, 109)
_MOMENTS = ("abs_mean", "variance")


@artefact("understanding-bn/figure-2", basis="measurement")
def gradients_of_layer_55(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 2: gradients of layer 55 are about 100 times larger without batch norm, with heavier tails."""
    setting = Initializations(context, data, batch_size, draws)
    weight, histograms = f"{conv_path(55)}.weight", []

    def sizes(draw: Draw) -> pd.DataFrame:
        moments, counts = GradientMoments(), ParameterGradientHistograms(parameters=[weight])
        observe(draw.model, [moments, counts], draw.inputs, draw.targets)
        if draw.number == 0:
            histograms.append(counts.table().assign(scheme="batch_norm" if draw.batch_norm else "none"))
        return moments.table().query("parameter == @weight")

    drawn = setting.measured(sizes)
    without, with_norm = (drawn[drawn["batch_norm"] == kind].set_index("draw") for kind in (False, True))
    ratio = without["norm"] / with_norm["norm"]
    kurtosis = [over_draws(rows["kurtosis"]) for rows in (without, with_norm)]
    checks = (
        within(
            "Gradients without batch norm are about 10² times larger, within half a decade (log₁₀ of the ratio of "
            "their norms).",
            decades_over_draws(ratio),
            1.5,
            2.5,
        ),
        larger("Their kurtosis is larger without batch norm: tails are heavier.", *kurtosis),
    )
    measured = quantity_table(
        {
            "magnitude_ratio_unnormalized_to_normalized": over_draws(ratio),
            "log10 of that ratio": decades_over_draws(ratio),
            "kurtosis without batch norm": kurtosis[0],
            "kurtosis with batch norm": kurtosis[1],
            "largest |gradient| without batch norm": over_draws(without["max_abs"]),
            "largest |gradient| with batch norm": over_draws(with_norm["max_abs"]),
        }
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=55, parameter=weight),
        on=("quantity",),
        draw=lambda: _histograms(pd.concat(histograms)),
        remarks=("The figure shows the first draw; note that its horizontal axes differ.",),
    )


def _histograms(counts: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    for axes, scheme, title in zip(
        panels, ("none", "batch_norm"), ("Without batch norm", "With batch norm"), strict=True
    ):
        value_histograms(
            counts[counts["scheme"] == scheme],
            axes,
            title=title,
            across="gradient of a weight of layer 55 (nats per unit)",
            logarithmic=True,
        )
    return panels[0]


@artefact("understanding-bn/figure-3", basis="measurement")
def moments_against_depth(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 3: without batch norm channel means and variances grow almost exponentially with depth."""
    setting = Initializations(context, data, batch_size, draws)
    drawn = setting.measured(lambda draw: channel_moments(draw.model, draw.inputs))
    fitted = drawn[drawn["order"].between(*_FITTED)]
    fits = pd.DataFrame([_fits(rows) for _, rows in fitted.groupby(["batch_norm", "draw"])])
    quantities: dict[str, Estimate | float] = {
        "largest_output_channel_scale": over_draws(10 ** fits.loc[~fits["batch_norm"], "log10_scale"])
    }
    checks = [
        within(
            "Without batch norm output scales √(mean² + variance) reach about 10², within half a decade (log₁₀).",
            over_draws(fits.loc[~fits["batch_norm"], "log10_scale"]),
            1.5,
            2.5,
        )
    ]
    for moment, name in zip(_MOMENTS, ("|mean|", "variance"), strict=True):
        without, with_norm = (fits[fits["batch_norm"] == kind] for kind in (False, True))
        growth = [over_draws(rows[f"{moment}_decades"]) for rows in (without, with_norm)]
        straight = over_draws(without[f"{moment}_straightness"])
        for kind, value in zip(("without", "with"), growth, strict=True):
            quantities[f"decades of {name} over 100 layers {kind} batch norm"] = value
        quantities[f"R² of log₁₀ {name} against the layer without batch norm"] = straight
        checks += [
            larger(
                f"Without batch norm {name} grows by more than a decade over 100 layers.", growth[0], Estimate(1.0)
            ),
            larger(
                f"Almost exponentially: a straight line explains more than 0.8 of the variance of log₁₀ {name} over "
                "layers.",
                straight,
                Estimate(0.8),
            ),
            within(
                f"With batch norm {name} stays roughly constant: its trend is less than half a decade over 100 "
                "layers.",
                growth[1],
                -0.5,
                0.5,
            ),
        ]
    first = drawn[drawn["draw"] == 0]
    return Evidence(
        quantity_table(quantities),
        tuple(checks),
        setting.setup(layers=f"{_FITTED[0]} to {_FITTED[1]}", moments="of the weight layers' outputs, before a norm"),
        on=("quantity",),
        draw=lambda: _moments(first),
        remarks=(
            "With batch norm the first convolution of a block reads the stream, which grows within a stage, so that "
            "variances zigzag around their constant trend.",
            "The figure shows the first draw; bands reach one standard deviation over channels.",
        ),
    )


def _fits(rows: pd.DataFrame) -> dict[str, float | bool]:
    """Decades over 100 layers of each moment, how straight that is, and the scale of the largest layer."""
    found: dict[str, float | bool] = {"batch_norm": bool(rows["batch_norm"].iloc[0])}
    layers = rows["order"].to_numpy(float)
    for moment in _MOMENTS:
        logarithms = np.log10(rows[moment].to_numpy(float))
        slope, _ = np.polyfit(layers, logarithms, 1)
        found[f"{moment}_decades"] = 100 * float(slope)
        found[f"{moment}_straightness"] = float(np.corrcoef(layers, logarithms)[0, 1] ** 2)
    scale = np.sqrt(np.square(rows["abs_mean"]) + rows["variance"])
    found["log10_scale"] = float(np.log10(scale.max()))
    return found


def _moments(first: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    titles = ("Channel means", "Channel variances")
    channel_moments_against_depth(first, panels[0], moment="abs_mean")
    channel_moments_against_depth(first, panels[1], moment="variance")
    for axes, title in zip(panels, titles, strict=True):
        title_axes(axes, title)
    return panels[0]
