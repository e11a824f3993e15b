"""Single parameters of a kernel: figures 18, 22 and 23."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normless.plots import Plot
from normless.probes import observe
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.plots import SUMS_OF_PARAMETERS
from normless_papers.probes import ParameterGradients, gradient_alignment_table, summand_statistics
from normless_papers.stated_claims import Tests, exceeds, lies_within
from normless_papers.understanding_bn.initial_pass import pass_of
from normless_papers.understanding_bn.initializations import INKS, Draw, Initializations, Measured, conv_path, decades

# Skewed summands have a mean of more than this many standard deviations, centred ones of less.
_SKEWED = 1 / 3


def _gradient_and_channel_mean(facts: Measured) -> Tests:
    correlations = facts.estimates("mean_correlation")
    dead = [decades(rows["dead_gradient"] / rows["live_gradient"]) for rows in facts.both]
    return {
        "Without batch norm |gradient| rises with the mean of the in-channel: rank correlation above 0.5.": exceeds(
            correlations[0], 0.5
        ),
        "Without it the tenth of weights with the most negative means has gradients at most a tenth of those of "
        "the tenth with the largest (log₁₀ of the ratio below -1).": exceeds(-1.0, dead[0]),
        "With batch norm the dependence disappears: correlation between -0.25 and 0.25.": lies_within(
            correlations[1], -0.25, 0.25
        ),
        "With batch norm all channels have equally large gradients on average: those of the two tenths are "
        "within half a decade (log₁₀ of the ratio).": lies_within(dead[1], -0.5, 0.5),
    }


@artefact("understanding-bn/figure-18", basis="measurement", checks=_gradient_and_channel_mean)
def gradient_and_channel_mean(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int
) -> Evidence:
    """Figure 18: in layer 35 gradients follow the means of the channels they read only without batch norm."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    columns = ["mean_correlation", "dead_gradient", "live_gradient"]
    first: list[pd.DataFrame] = []

    def alignment(draw: Draw) -> pd.DataFrame:
        parameters = _averaged(draw, 35)
        if draw.number == 0:
            first.append(parameters.assign(scheme=INKS[draw.batch_norm]))
        return gradient_alignment_table(parameters)[columns]

    return setting.evidence(
        alignment,
        f"Gradients and means are averages over {minibatches} minibatch{'es' * (minibatches > 1)} of the "
        "training set. Means are those before the ReLU, and before the norm where there is one, so that they are "
        "not 0 by definition. The figure shows the first draw.",
        draw=lambda: AGAINST_MEAN(pd.concat(first)),
        layer=35,
        minibatches=minibatches,
    )


def _of_layer(draw: Draw, layer: int) -> pd.DataFrame:
    """The parameters of one layer on the first minibatch."""
    parameters = pass_of(draw)["parameters"]
    return parameters[parameters["order"] == layer].reset_index(drop=True)


def _averaged(draw: Draw, layer: int) -> pd.DataFrame:
    """Every parameter's gradient and in-channel mean, averaged over the minibatches."""
    tables = [_of_layer(draw, layer)]
    for inputs, targets in draw.batches[1:]:
        watcher = ParameterGradients([conv_path(layer)])
        observe(draw.model, [watcher], inputs, targets)
        tables.append(watcher.table())
    averaged = tables[0].copy()
    for name in ("gradient", "channel_mean"):
        averaged[name] = sum(table[name] for table in tables) / len(tables)
    return averaged.assign(abs_sum=averaged["gradient"].abs())


def _summands_of_a_parameter(facts: Measured) -> Tests:
    rows = facts.by_draw(batch_norm=False)
    large, small = (rows[rows["chosen"] == chosen] for chosen in ("largest", "small"))
    return {
        "The parameter with the largest gradient has |Σd| of more than half of Σ|d|.": exceeds(
            large["input_independence"], 0.5
        ),
        "Most of its summands that are not 0, more than two thirds, have one sign.": exceeds(
            large["one_sign_share"], 2 / 3
        ),
        "They are skewed away from 0: their mean is more than a third of their standard deviation.": exceeds(
            large["mean_in_deviations"], _SKEWED
        ),
        "A parameter with a small gradient has summands centred around 0: |mean| below a third of the "
        "deviation.": exceeds(_SKEWED, small["mean_in_deviations"]),
    }


@artefact("understanding-bn/figure-22", basis="measurement", checks=_summands_of_a_parameter)
def summands_of_a_parameter(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 22: the summands of a parameter with |Σd| ≈ Σ|d| in layer 90 are skewed far from 0."""
    setting = Initializations(context, data, batch_size, draws)
    columns = ["chosen", "parameter", "one_sign_share", "mean_in_deviations", "input_independence"]
    return setting.evidence(
        lambda draw: summand_statistics(pass_of(draw)["summands"])[columns],
        "`small` is the parameter above 5 % of all in |Σd|, without those that read a dead channel. The figure "
        "shows the first draw.",
        draw=lambda: SUMMANDS(pass_of(Draw(setting, False, 0))["summands"]),
        batch_norm=(False,),
        layer=90,
    )


def _gradients_on_a_line(facts: Measured) -> Tests:
    without, with_norm = facts.both
    return {
        "Without batch norm |Σd| lies almost on a line with Σ|d|: their correlation over parameters is above "
        "0.75.": exceeds(without["sum_correlation"], 0.75),
        "With batch norm the relation disappears: correlation below 0.5.": exceeds(0.5, with_norm["sum_correlation"]),
        "Gradients are much smaller with batch norm, by more than a factor of 10 (log₁₀ of the ratio).": exceeds(
            decades(without["mean_abs_gradient"] / with_norm["mean_abs_gradient"]), 1.0
        ),
    }


@artefact("understanding-bn/figure-23", basis="measurement", checks=_gradients_on_a_line)
def gradients_on_a_line(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 23: in layer 54 many parameters have |Σd| = c·Σ|d| without batch norm; with it gradients are smaller."""
    setting = Initializations(context, data, batch_size, draws)

    def alignment(draw: Draw) -> pd.DataFrame:
        parameters = _of_layer(draw, 54)
        table = gradient_alignment_table(parameters)[["sum_correlation", "share_aligned"]]
        return table.assign(mean_abs_gradient=parameters["abs_sum"].mean())

    return setting.evidence(
        alignment,
        "`share_aligned` is the share of parameters with |Σd| ≥ Σ|d|/2. The figure shows the first draw; points "
        "on the dotted line have summands of one sign.",
        draw=lambda: SUMS_OF_PARAMETERS(setting.shown(lambda draw: _of_layer(draw, 54))),
        layer=54,
    )


def _in_deviations(parameters: pd.DataFrame) -> pd.DataFrame:
    """Networks with and without norms have means of other orders of magnitude."""
    spread = parameters.groupby("scheme")["channel_mean"].transform("std", ddof=0).replace(0.0, 1.0)
    return parameters.assign(channel_mean=parameters["channel_mean"] / spread)


AGAINST_MEAN = Plot(
    "points",
    _in_deviations,
    x="channel_mean",
    y="abs_sum",
    log="y",
    names="beside",
    title="Channel mean and gradient",
    x_label="mean of the in-channel, in standard deviations",
    y_label="|gradient|",
)


def _in_root_mean_squares(summands: pd.DataFrame) -> pd.DataFrame:
    """Summands that are not exactly 0, as those of a ReLU that was off are, in units of their root mean square."""
    parts = []
    for (chosen, parameter), rows in summands.groupby(["chosen", "parameter"], sort=False):
        values = rows["summand"].to_numpy(float)
        other = values[values != 0]
        name = f"{chosen} ({parameter}), {1 - len(other) / len(values):.0%} zero"
        parts.append(pd.DataFrame({"name": name, "summand": other / np.sqrt(np.square(other).mean())}))
    return pd.concat(parts)


SUMMANDS = Plot(
    "histogram",
    _in_root_mean_squares,
    x="summand",
    by="name",
    bins=61,
    limits=(-3, 3),
    share=True,
    x_marks=[0],
    title="Summands of one parameter's gradient",
    x_label="summand, in root mean squares",
    y_label="share",
)
