"""Single parameters of a kernel: figures 18, 22 and 23."""

from __future__ import annotations

import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, over_draws
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import INKS, Draw, Initializations, conv_path
from normless.papers.verdict import Estimate, larger
from normless.probes.backward.parameter_gradients import ParameterGradients, gradient_alignment_table
from normless.probes.backward.summand_distribution import SummandDistribution, summand_statistics
from normless.probes.watching.observe import observe
from normless.report.probes.gradient_scatter import gradient_against_channel_mean, sums_of_parameters
from normless.report.probes.summand_histogram import summand_histogram


@artefact("understanding-bn/figure-18", basis="measurement")
def gradient_and_channel_mean(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int
) -> Evidence:
    """Figure 18: in layer 35 gradients follow the means of the channels they read, without batch norm alone."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    shown: list[pd.DataFrame] = []

    def alignment(draw: Draw) -> pd.DataFrame:
        parameters = _averaged(draw, 35)
        if draw.number == 0:
            shown.append(parameters.assign(scheme=INKS[draw.batch_norm]))
        return gradient_alignment_table(parameters)[["mean_correlation", "dead_gradient", "live_gradient"]]

    measured = setting.measured(alignment)
    without, with_norm = (measured[measured["batch_norm"] == kind] for kind in (False, True))
    correlations = [over_draws(rows["mean_correlation"]) for rows in (without, with_norm)]
    dead = [decades_over_draws(rows["dead_gradient"] / rows["live_gradient"]) for rows in (without, with_norm)]
    checks = (
        larger(
            "Without batch norm |gradient| rises with the mean of the in-channel: rank correlation above 0.5.",
            correlations[0],
            Estimate(0.5),
        ),
        larger(
            "Without it the tenth of weights with the most negative means has gradients at most a tenth of those of "
            "the tenth with the largest (log₁₀ of the ratio below -1).",
            Estimate(-1.0),
            dead[0],
        ),
        larger("With batch norm the dependence disappears: correlation below 0.25.", Estimate(0.25), correlations[1]),
        larger(
            "With batch norm the two tenths have gradients of one order of magnitude (log₁₀ of the ratio above "
            "-0.5).",
            dead[1],
            Estimate(-0.5),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=35, minibatches=minibatches),
        draw=lambda: gradient_against_channel_mean(pd.concat(shown)),
        remarks=(
            f"Gradients and means are averages over {minibatches} minibatch{'es' * (minibatches > 1)} of the "
            "training set. Means are those before the ReLU, and before the norm where there is one, so that they are "
            "not 0 by definition. The figure shows the first draw.",
        ),
    )


def _averaged(draw: Draw, layer: int) -> pd.DataFrame:
    """Every parameter's gradient and in-channel mean, averaged over the minibatches."""
    tables = []
    for inputs, targets in draw.batches:
        watcher = ParameterGradients([conv_path(layer)])
        observe(draw.model, [watcher], inputs, targets)
        tables.append(watcher.table())
    averaged = tables[0].copy()
    for name in ("gradient", "channel_mean"):
        averaged[name] = sum(table[name] for table in tables) / len(tables)
    return averaged.assign(abs_sum=averaged["gradient"].abs())


@artefact("understanding-bn/figure-22", basis="measurement")
def summands_of_a_parameter(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 22: the summands of a parameter with |Σd| ≈ Σ|d| in layer 90 are skewed far from 0."""
    setting = Initializations(context, data, batch_size, draws)
    shown: list[pd.DataFrame] = []

    def statistics(draw: Draw) -> pd.DataFrame:
        summands = SummandDistribution(conv_path(90))
        observe(draw.model, [summands], draw.inputs, draw.targets)
        if draw.number == 0:
            shown.append(summands.table())
        columns = ["chosen", "parameter", "one_sign_share", "mean_in_deviations", "input_independence"]
        return summand_statistics(summands.table())[columns]

    measured = setting.measured(statistics, batch_norm=(False,))
    large, small = (measured[measured["chosen"] == chosen] for chosen in ("largest", "cancelling"))
    checks = (
        larger(
            "The parameter with the largest gradient has |Σd| of more than half of Σ|d|.",
            over_draws(large["input_independence"]),
            Estimate(0.5),
        ),
        larger(
            "Most of its summands that are not 0, more than two thirds, have one sign.",
            over_draws(large["one_sign_share"]),
            Estimate(2 / 3),
        ),
        larger(
            "They are skewed away from 0: their mean is more than a third of their standard deviation.",
            over_draws(large["mean_in_deviations"]),
            Estimate(1 / 3),
        ),
        larger(
            "A parameter with a small gradient has summands centred around 0: |mean| below a tenth of the deviation.",
            Estimate(0.1),
            over_draws(small["mean_in_deviations"]),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=90),
        draw=lambda: summand_histogram(shown[0]),
        remarks=(
            "`cancelling` is the parameter with the smallest |Σd|/Σ|d| among the half with the largest Σ|d|. The "
            "figure shows the first draw.",
        ),
    )


@artefact("understanding-bn/figure-23", basis="measurement")
def gradients_on_a_line(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Figure 23: in layer 54 many parameters have |Σd| = c·Σ|d| without batch norm; with it gradients are smaller."""
    setting = Initializations(context, data, batch_size, draws)
    shown: list[pd.DataFrame] = []

    def alignment(draw: Draw) -> pd.DataFrame:
        watcher = ParameterGradients([conv_path(54)])
        observe(draw.model, [watcher], draw.inputs, draw.targets)
        parameters = watcher.table()
        if draw.number == 0:
            shown.append(parameters.assign(scheme=INKS[draw.batch_norm]))
        table = gradient_alignment_table(parameters)[["sum_correlation", "share_aligned"]]
        return table.assign(mean_abs_gradient=parameters["abs_sum"].mean())

    measured = setting.measured(alignment)
    without, with_norm = (measured[measured["batch_norm"] == kind].set_index("draw") for kind in (False, True))
    correlations = [over_draws(rows["sum_correlation"]) for rows in (without, with_norm)]
    checks = (
        larger(
            "Without batch norm |Σd| lies almost on a line with Σ|d|: their correlation over parameters is above "
            "0.75.",
            correlations[0],
            Estimate(0.75),
        ),
        larger("With batch norm the relation disappears: correlation below 0.5.", Estimate(0.5), correlations[1]),
        larger(
            "Gradients are much smaller with batch norm, by more than a factor of 10 (log₁₀ of the ratio).",
            decades_over_draws(without["mean_abs_gradient"] / with_norm["mean_abs_gradient"]),
            Estimate(1.0),
        ),
    )
    return Evidence(
        measured,
        checks,
        setting.setup(layer=54),
        draw=lambda: sums_of_parameters(pd.concat(shown)),
        remarks=(
            "`share_aligned` is the share of parameters with |Σd| ≥ Σ|d|/2. The figure shows the first draw; points "
            "on the dotted line have summands of one sign.",
        ),
    )
