"""The agreement of the summands of a kernel's gradient: equation (4), tables 1 and 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes

from normless.plots import lines, scheme_ink
from normless.probes import observe
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import replicates
from normless_papers.plots import SUMS_OF_PARAMETERS
from normless_papers.probes import ParameterGradients
from normless_papers.stated_claims import Test, Tests, asked_at_scale, decided, exceeds, lies_within
from normless_papers.understanding_bn.initial_pass import pass_of
from normless_papers.understanding_bn.initializations import Draw, Initializations, Measured, conv_path, decades

SUMS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")
_LAYERS = (18, 54, 90)
_PAIRS = ((18, 19), (54, 55), (90, 91))

# In float64 Σd and autograd differ by rounding alone.
_ROUNDING = 1e-9


def _summand_identity(facts: Measured) -> Tests:
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
def summand_identity(context: Context, *, data: str, batch_size: int, draws: int, layers: Sequence[int]) -> Evidence:
    """Equation (4): the summands of a kernel's gradient add up to autograd's, and the triangle inequality holds."""
    setting = Initializations(context, data, batch_size, draws)
    return setting.evidence(
        lambda draw: _disagreements(_with_autograd(draw, layers)),
        f"The figure has the parameters of layer {layers[0]} in the first draw: none is above the dotted line "
        "|Σd| = Σ|d|.",
        "The paper states the equation; the inequalities are the triangle inequality.",
        draw=lambda: SUMS_OF_PARAMETERS(setting.shown(lambda draw: _with_autograd(draw, layers[:1]))),
        layers=list(layers),
        precision="float64",
    )


def _with_autograd(draw: Draw, layers: Sequence[int]) -> pd.DataFrame:
    """Sums of each parameter's summands, and `exact`, the gradient by autograd."""
    model, inputs = draw.model.double().train(), draw.inputs.double()
    watcher = ParameterGradients([conv_path(layer) for layer in layers])
    observe(model, [watcher], inputs, draw.targets)
    weights = [model.get_parameter(f"{conv_path(layer)}.weight") for layer in layers]
    exact = torch.autograd.grad(F.cross_entropy(model(inputs), draw.targets), weights)
    table = watcher.table()
    return table.assign(exact=np.concatenate([gradient.flatten().numpy() for gradient in exact]))


def _disagreements(parameters: pd.DataFrame) -> pd.DataFrame:
    """By layer: the largest deviation from autograd, and the number of parameters that violate an inequality."""
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


def _table_1(facts: Measured) -> Tests:
    sizes = _by_layer(facts, "abs_sum", batch_norm=False)
    growth = {
        f"Without batch norm |Σd| is larger in layer {later} than in layer {earlier} (log₁₀ of the ratio above "
        "0).": exceeds(decades(sizes[later] / sizes[earlier]), 0.0)
        for earlier, later in pairwise(_LAYERS)
    }
    return {**_agreement(facts, _LAYERS), **growth}


@artefact("understanding-bn/table-1", basis="measurement", checks=_table_1)
def agreeing_summands(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Table 1: without batch norm Σ|d| and |Σd| agree to a factor of about 2, with it they differ by about 10²."""
    return _evidence(Initializations(context, data, batch_size, draws), _LAYERS)


def _table_4(facts: Measured) -> Tests:
    layers = [layer for pair in _PAIRS for layer in pair]
    sizes = np.log10(_by_layer(facts, "abs_sum", batch_norm=False))
    ratio = sum(sizes[second] - sizes[first] for first, second in _PAIRS) / len(_PAIRS)
    return {
        **_agreement(facts, layers),
        "Without batch norm |Σd| is smaller in the second convolution of a block than in the first (log₁₀ of the "
        "ratio, its mean over the three blocks, below 0).": exceeds(0.0, replicates(ratio)),
    }


@artefact("understanding-bn/table-4", basis="measurement", checks=_table_4)
def neighbouring_layers(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Table 4: as table 1 for both convolutions of three blocks; the second has smaller gradients without norm."""
    return _evidence(
        Initializations(context, data, batch_size, draws), tuple(layer for pair in _PAIRS for layer in pair)
    )


def _by_layer(facts: Measured, quantity: str, *, batch_norm: bool) -> pd.DataFrame:
    """A quantity by draw (rows) and layer (columns)."""
    return facts.pivoted("order", [quantity], batch_norm=batch_norm).droplevel(0, axis=1)


def _agreement(facts: Measured, layers: Sequence[int]) -> Tests:
    """Per layer: Σ|d| is of the order of |Σd| without batch norm, and of √N·|Σd|, the paper's 10², with it."""
    table = facts.table.assign(factor=_factor(facts.table))
    # Σ|d|/|Σd| of N independent summands of random sign is √N in order of magnitude.
    table["of_random_signs"] = table["factor"] * table["predicted_for_random_signs"]
    facts = replace(facts, table=table)
    without = _by_layer(facts, "factor", batch_norm=False)
    with_norm, cancelled = (_by_layer(facts, name, batch_norm=True) for name in ("factor", "of_random_signs"))
    sizes = [_by_layer(facts, "abs_sum", batch_norm=kind) for kind in (False, True)]
    tests: dict[str, Test] = {}
    for layer in layers:
        ratio, five = decades(sizes[0][layer] / sizes[1][layer]), math.log10(5)
        named = f"Layer {layer} with batch norm"
        tests |= {
            f"Layer {layer} without batch norm: Σ|d| is about twice |Σd|, at most 4 times (log₁₀ of "
            "the ratio).": lies_within(decades(without[layer]), 0.0, math.log10(4)),
            f"{named}: the N summands cancel as random signs do, Σ|d| is √N times |Σd| within a factor of 5 "
            "(log₁₀ of the ratio to √N).": lies_within(decades(cancelled[layer]), -five, five),
            f"{named}: Σ|d| is about 10² times |Σd|, within a factor of 5 (log₁₀ of it).": asked_at_scale(
                lies_within(decades(with_norm[layer]), 2 - five, 2 + five), facts.fewer
            ),
            f"Layer {layer}: |Σd| is larger without batch norm (log₁₀ of the ratio above 0).": exceeds(ratio, 0.0),
            f"Layer {layer}: |Σd| is two to three orders of magnitude larger without batch norm, within half "
            "a decade (log₁₀ of the ratio).": asked_at_scale(lies_within(ratio, 1.5, 3.5), facts.reduction),
        }
    return tests


def _factor(rows: pd.DataFrame) -> pd.Series:
    return rows["sum_abs"] / rows["abs_sum"]


def _evidence(setting: Initializations, layers: Sequence[int]) -> Evidence:
    """The four sums of some layers, and their geometric means over draws in the table's columns."""

    def sums(draw: Draw) -> pd.DataFrame:
        table = pass_of(draw)["sums"]
        return table[table["order"].isin(layers)]

    drawn = setting.measured(sums)
    logarithms = drawn.assign(factor=_factor(drawn))
    columns = [*SUMS, "factor"]
    logarithms[columns] = np.log10(logarithms[columns])
    grouped = logarithms.groupby(["batch_norm", "order"], sort=False)
    means = (10 ** grouped[columns].mean()).reset_index().rename(columns={"order": "layer"})
    means["factor_decades_deviation"] = grouped["factor"].std().to_numpy()
    means["factor_of_random_signs"] = 1 / grouped["predicted_for_random_signs"].first().to_numpy(float)
    means["n"] = grouped.size().to_numpy()
    means = means.sort_values(["batch_norm", "layer"], ascending=[False, True], ignore_index=True)
    first = drawn[drawn["draw"] == 0]
    return Evidence(
        means,
        Measured(drawn, setting.fewer, setting.reduction),
        setting.setup(layers=list(layers)),
        on=("layer", "batch_norm"),
        draw=lambda: draw_sums(first, layers),
        remarks=(
            "Measured sums are geometric means over draws: they differ from draw to draw by orders of magnitude "
            "without batch norm. `factor` is Σ|d|/|Σd|, and `factor_of_random_signs` is √N, its order of magnitude "
            "for N independent summands of random sign.",
            "The figure shows the first draw.",
        ),
        reduction=setting.reduction,
    )


SUM_SYMBOLS = {"sum_abs": "Σ|d|", "sum_xy_abs_sum_b": "Σₓ|Σ_b d|", "sum_b_abs_sum_xy": "Σ_b|Σₓ d|", "abs_sum": "|Σd|"}


def draw_sums(sums: pd.DataFrame, layers: Sequence[int]) -> Axes:
    """The four sums of some layers side by side: level where summands agree, falling where they cancel."""
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
