"""Bjorck et al., summands of a kernel's gradient (equation 4, tables 1 and 4, figures 18, 22 and 23)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes

from normless.probes import observe
from normless_lab.plots import Plot, lines, scheme_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Network, Seeds
from normless_papers.claims import Tests, decided
from normless_papers.plots import SUMS_OF_PARAMETERS
from normless_papers.probes import ParameterGradients
from normless_papers.probes.summand_tables import gradient_alignment_table, summand_statistics
from normless_papers.understanding_bn.initializations import (
    Draw,
    Initializations,
    MeasuredDraws,
    conv_path,
    pass_of,
)

SUMS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")
# In float64 Σd and autograd differ only by rounding.
_ROUNDING = 1e-9


def _summand_identity(facts: MeasuredDraws) -> Tests:
    measured = facts.table
    return {
        f"Σ d over examples and positions is autograd's gradient of every kernel parameter, to {_ROUNDING:g} of "
        "the kernel's mean |gradient|.": decided(
            (measured["deviation"] <= _ROUNDING).all(),
            largest_deviation=measured["deviation"].max(),
            parameters=measured["parameters"].sum(),
        ),
        "|Σd| ≤ Σ_b|Σ_xy d| ≤ Σ|d| and |Σd| ≤ Σ_xy|Σ_b d| ≤ Σ|d| for every parameter, to rounding.": decided(
            (measured["violations"] == 0).all(),
            violations=measured["violations"].sum(),
            parameters=measured["parameters"].sum(),
        ),
    }


@artefact("understanding-bn/equation-4", basis="formula", checks=_summand_identity)
def summand_identity(
    context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int], layers: Network[Sequence[int]]
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: _disagreements(_with_autograd(draw, layers)),
        f"The figure shows the parameters of layer {layers[0]} in the first draw: none is above the dotted line "
        "|Σd| = Σ|d|.",
        draw=lambda: SUMS_OF_PARAMETERS(setting.shown(lambda draw: _with_autograd(draw, layers[:1]))),
        layers=list(layers),
        precision="float64",
    )


def _with_autograd(draw: Draw, layers: Sequence[int]) -> pd.DataFrame:
    """Sum each parameter's summands; `exact` is the gradient by autograd."""
    model, inputs = draw.model.double().train(), draw.inputs.double()
    watcher = ParameterGradients([conv_path(layer) for layer in layers])
    observe(model, [watcher], inputs, draw.targets)
    weights = [model.get_parameter(f"{conv_path(layer)}.weight") for layer in layers]
    exact = torch.autograd.grad(F.cross_entropy(model(inputs), draw.targets), weights)
    table = watcher.table()
    return table.assign(exact=np.concatenate([gradient.flatten().numpy() for gradient in exact]))


def _disagreements(parameters: pd.DataFrame) -> pd.DataFrame:
    """Return by layer the largest deviation from autograd and the number of parameters that violate an inequality."""
    rows = []
    for layer, group in parameters.groupby("order", sort=True):
        allowed = 1e-12 * group["sum_abs"]
        broken = pd.Series(False, index=group.index)
        for between in ("sum_b_abs_sum_xy", "sum_xy_abs_sum_b"):
            broken |= group["abs_sum"] > group[between] + allowed
            broken |= group[between] > group["sum_abs"] + allowed
        apart = (group["gradient"] - group["exact"]).abs().max() / group["exact"].abs().mean()
        rows.append({"layer": layer, "parameters": len(group), "deviation": apart, "violations": int(broken.sum())})
    return pd.DataFrame(rows)


def _table_of_sums(name: str, layers: Sequence[int]) -> None:
    """Register table 1 or 4: geometric means over draws of the four sums of some layers."""

    @artefact(f"understanding-bn/{name}", basis="measurement")
    def measure(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
        setting = Initializations(context, data, batch_size, draws)
        drawn = setting.measured(lambda draw: pass_of(draw)["sums"].loc[lambda sums: sums["order"].isin(layers)])
        logarithms = drawn.assign(factor=drawn["sum_abs"] / drawn["abs_sum"])
        columns = [*SUMS, "factor"]
        logarithms[columns] = np.log10(logarithms[columns])
        grouped = logarithms.groupby(["batch_norm", "order"], sort=False)
        means = (10 ** grouped[columns].mean()).reset_index().rename(columns={"order": "layer"})
        means["factor_decades_deviation"] = grouped["factor"].std().to_numpy()
        means["factor_of_random_signs"] = 1 / grouped["predicted_for_random_signs"].first().to_numpy(float)
        means["n"] = grouped.size().to_numpy()
        means = means.sort_values(["batch_norm", "layer"], ascending=[False, True], ignore_index=True)
        first = drawn[drawn["draw"] == 0]
        return setting.evidence_of(
            means,
            MeasuredDraws(drawn, setting.fewer, setting.reduction),
            draw=lambda: draw_sums(first, layers),
            on=("layer", "batch_norm"),
            layers=list(layers),
        )


_table_of_sums("table-1", (18, 54, 90))
_table_of_sums("table-4", (18, 19, 54, 55, 90, 91))

SUM_SYMBOLS = {"sum_abs": "Σ|d|", "sum_xy_abs_sum_b": "Σₓ|Σ_b d|", "sum_b_abs_sum_xy": "Σ_b|Σₓ d|", "abs_sum": "|Σd|"}


def draw_sums(sums: pd.DataFrame, layers: Sequence[int]) -> Axes:
    """Draw the four sums of some layers: level if summands agree, falling if they cancel."""
    chosen = sums[sums["order"].isin(list(layers))].sort_values("order")
    chosen = chosen.assign(name=chosen["scheme"] + " " + chosen["order"].astype(str))
    table = chosen.melt(["name", "scheme"], list(SUM_SYMBOLS), var_name="sum", value_name="average")
    return lines(
        table.assign(place=table["sum"].map(list(SUM_SYMBOLS).index)),
        x="place",
        y="average",
        by="name",
        inks={str(row["name"]): scheme_ink(str(row["scheme"])) for row in chosen.to_dict("records")},
        log="y",
        x_ticks=dict(enumerate(SUM_SYMBOLS.values())),
        size=(6.4, 3.4),
        title="Gradient of one summand, by what is summed first",
        x_label="",
        y_label="average over parameters",
    )


@artefact("understanding-bn/figure-18", basis="measurement")
def gradient_and_channel_mean(
    context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int], minibatches: Seeds[int]
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws, minibatches)
    columns = ["mean_correlation", "dead_gradient", "live_gradient"]
    averaged = cache(lambda draw: _averaged(draw, 35))
    return setting.evidence(
        lambda draw: gradient_alignment_table(averaged(draw))[columns],
        f"Gradients and means are averages over {minibatches} minibatch{'es' * (minibatches > 1)} of the "
        "training set. Means are those before the ReLU and any norm, so that they are not 0 by definition. The "
        "figure shows the first draw.",
        draw=lambda: AGAINST_MEAN(setting.shown(averaged)),
        layer=35,
        minibatches=minibatches,
    )


def _of_layer(draw: Draw, layer: int) -> pd.DataFrame:
    """Return the parameters of one layer on the first minibatch."""
    parameters = pass_of(draw)["parameters"]
    return parameters[parameters["order"] == layer].reset_index(drop=True)


def _averaged(draw: Draw, layer: int) -> pd.DataFrame:
    """Average every parameter's gradient and in-channel mean over the minibatches."""
    tables = [_of_layer(draw, layer)]
    for inputs, targets in draw.batches[1:]:
        watcher = ParameterGradients([conv_path(layer)])
        observe(draw.model, [watcher], inputs, targets)
        tables.append(watcher.table())
    averaged = tables[0].copy()
    for name in ("gradient", "channel_mean"):
        averaged[name] = sum(table[name] for table in tables) / len(tables)
    return averaged.assign(abs_sum=averaged["gradient"].abs())


@artefact("understanding-bn/figure-22", basis="measurement")
def summands_of_a_parameter(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)
    columns = ["chosen", "parameter", "one_sign_share", "mean_in_deviations", "input_independence"]
    return setting.evidence(
        lambda draw: summand_statistics(pass_of(draw)["summands"])[columns],
        draw=lambda: SUMMANDS(pass_of(Draw(setting, False, 0))["summands"]),
        batch_norm=(False,),
        layer=90,
    )


@artefact("understanding-bn/figure-23", basis="measurement")
def gradients_on_a_line(context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int]) -> Evidence:
    setting = Initializations(context, data, batch_size, draws)

    def alignment(draw: Draw) -> pd.DataFrame:
        parameters = _of_layer(draw, 54)
        table = gradient_alignment_table(parameters)[["sum_correlation", "share_aligned"]]
        return table.assign(mean_abs_gradient=parameters["abs_sum"].mean())

    return setting.evidence(
        alignment,
        draw=lambda: SUMS_OF_PARAMETERS(setting.shown(lambda draw: _of_layer(draw, 54))),
        layer=54,
    )


def _in_deviations(parameters: pd.DataFrame) -> pd.DataFrame:
    """Scale means to standard deviations, since those of both networks differ by orders of magnitude."""
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
    """Select the non-zero summands (an inactive ReLU makes exact zeros), in units of their root mean square."""
    parts = []
    for (chosen, parameter), rows in summands.groupby(["chosen", "parameter"], sort=False):
        values = rows["summand"].to_numpy(float)
        nonzero = values[values != 0]
        name = f"{chosen} ({parameter}), {1 - len(nonzero) / len(values):.0%} zero"
        parts.append(pd.DataFrame({"name": name, "summand": nonzero / np.sqrt(np.square(nonzero).mean())}))
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
