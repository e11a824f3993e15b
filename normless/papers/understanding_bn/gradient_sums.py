"""Do the summands of a kernel's gradient agree? Equation (4), tables 1 and 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, qualified, within
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Draw, Initializations, conv_path
from normless.papers.verdict import Check, Estimate, check, larger
from normless.probes.backward.gradient_sums import GradientSums
from normless.probes.backward.parameter_gradients import ParameterGradients
from normless.probes.watching.observe import observe
from normless.report.axes import new_axes
from normless.report.probes.gradient_scatter import sums_of_parameters
from normless.report.probes.gradient_sums import gradient_sums_of_layers

SUMS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")

# In float64 Σd and autograd differ by rounding alone.
_ROUNDING = 1e-9


@artefact("understanding-bn/equation-4", basis="measurement")
def summand_identity(context: Context, *, data: str, batch_size: int, draws: int, layers: Sequence[int]) -> Evidence:
    """Equation (4): the summands of a kernel's gradient add up to autograd's, and the triangle inequality holds."""
    setting = Initializations(context, data, batch_size, draws)
    parameters: list[pd.DataFrame] = []

    def compare(draw: Draw) -> pd.DataFrame:
        table = _with_autograd(draw, layers)
        parameters.append(table.assign(scheme="batch_norm" if draw.batch_norm else "none"))
        return _disagreements(table)

    measured = setting.measured(compare)
    checks = (
        check(
            f"Σ d over examples and positions is autograd's gradient of every kernel parameter, to {_ROUNDING:g} of "
            "the kernel's mean |gradient|.",
            bool((measured["deviation"] <= _ROUNDING).all()),
            largest_deviation=measured["deviation"].max(),
            parameters=measured["parameters"].sum(),
        ),
        check(
            "|Σd| ≤ Σ_b|Σ_xy d| ≤ Σ|d| and |Σd| ≤ Σ_xy|Σ_b d| ≤ Σ|d| for every parameter, to rounding.",
            bool((measured["violations"] == 0).all()),
            violations=measured["violations"].sum(),
            parameters=measured["parameters"].sum(),
        ),
    )
    shown = pd.concat(parameters)
    first = shown[shown["order"] == layers[0]]
    return Evidence(
        measured,
        checks,
        setting.setup(layers=list(layers), precision="float64"),
        draw=lambda: sums_of_parameters(first),
        remarks=(
            f"The figure has the parameters of layer {layers[0]}: none is above the dotted line |Σd| = Σ|d|.",
            "The paper states the equation; the inequalities are the triangle inequality.",
        ),
    )


def _with_autograd(draw: Draw, layers: Sequence[int]) -> pd.DataFrame:
    """Sums of each parameter's summands, and beside them `exact`, the gradient by autograd."""
    model, inputs = draw.model.double().train(), draw.inputs.double()
    watcher = ParameterGradients([conv_path(layer) for layer in layers])
    observe(model, [watcher], inputs, draw.targets)
    weights = [model.get_parameter(f"{conv_path(layer)}.weight") for layer in layers]
    exact = torch.autograd.grad(F.cross_entropy(model(inputs), draw.targets), weights)
    table = watcher.table()
    return table.assign(exact=np.concatenate([gradient.flatten().numpy() for gradient in exact]))


def _disagreements(parameters: pd.DataFrame) -> pd.DataFrame:
    """By layer: the largest deviation from autograd, and how many parameters violate an inequality."""
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


@artefact("understanding-bn/table-1", basis="measurement")
def agreeing_summands(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Table 1: without batch norm Σ|d| and |Σd| agree to a factor of about 2, with it they differ by about 10²."""
    layers = (18, 54, 90)
    setting = Initializations(context, data, batch_size, draws)
    drawn = _sums(setting, layers)
    return _evidence(
        setting, drawn, layers, _agreement_checks(drawn, setting, layers) + _growth_checks(drawn, layers)
    )


@artefact("understanding-bn/table-4", basis="measurement")
def neighbouring_layers(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Table 4: as table 1 for both convolutions of three blocks; the second has smaller gradients without norm."""
    pairs = ((18, 19), (54, 55), (90, 91))
    layers = tuple(layer for pair in pairs for layer in pair)
    setting = Initializations(context, data, batch_size, draws)
    drawn = _sums(setting, layers)
    checks = _agreement_checks(drawn, setting, layers)
    sizes = _by_layer(drawn, lambda row: row["abs_sum"], batch_norm=False)
    for first, second in pairs:
        ratio = decades_over_draws(sizes[second] / sizes[first])
        checks += (
            larger(
                f"Without batch norm |Σd| of layer {second} is smaller than that of layer {first} "
                "(log₁₀ of the ratio below 0).",
                Estimate(0.0),
                ratio,
            ),
        )
    return _evidence(setting, drawn, layers, checks)


def _sums(setting: Initializations, layers: Sequence[int]) -> pd.DataFrame:
    """A row per network, draw and layer: the four sums."""

    def sums(draw: Draw) -> pd.DataFrame:
        watcher = GradientSums([conv_path(layer) for layer in layers])
        observe(draw.model, [watcher], draw.inputs, draw.targets)
        return watcher.table()

    return setting.measured(sums)


def _by_layer(
    drawn: pd.DataFrame, quantity: Callable[[pd.DataFrame], pd.Series], *, batch_norm: bool
) -> pd.DataFrame:
    """A quantity by draw (rows) and layer (columns)."""
    chosen = drawn[drawn["batch_norm"] == batch_norm]
    return chosen.assign(quantity=quantity(chosen)).pivot(index="draw", columns="order", values="quantity")


def _factor(rows: pd.DataFrame) -> pd.Series:
    return rows["sum_abs"] / rows["abs_sum"]


def _agreement_checks(drawn: pd.DataFrame, setting: Initializations, layers: Sequence[int]) -> tuple[Check, ...]:
    without, with_norm = (_by_layer(drawn, _factor, batch_norm=kind) for kind in (False, True))
    sizes = [_by_layer(drawn, lambda row: row["abs_sum"], batch_norm=kind) for kind in (False, True)]
    checks: list[Check] = []
    for layer in layers:
        checks.append(
            within(
                f"Layer {layer} without batch norm: Σ|d| is about twice |Σd|, at most 4 times (log₁₀ of the ratio).",
                decades_over_draws(without[layer]),
                0.0,
                math.log10(4),
            )
        )
        cancelling = within(
            f"Layer {layer} with batch norm: Σ|d| is about 10² times |Σd|, within a factor of 5 (log₁₀ of it).",
            decades_over_draws(with_norm[layer]),
            2 - math.log10(5),
            2 + math.log10(5),
        )
        apart = within(
            f"Layer {layer}: |Σd| is two to three orders of magnitude larger without batch norm, within half a "
            "decade (log₁₀ of the ratio).",
            decades_over_draws(sizes[0][layer] / sizes[1][layer]),
            1.5,
            3.5,
        )
        checks += qualified((cancelling, apart), setting.reduction)
    return tuple(checks)


def _growth_checks(drawn: pd.DataFrame, layers: Sequence[int]) -> tuple[Check, ...]:
    sizes = _by_layer(drawn, lambda row: row["abs_sum"], batch_norm=False)
    return tuple(
        larger(
            f"Without batch norm |Σd| is larger in layer {later} than in layer {earlier} (log₁₀ of the ratio above "
            "0).",
            decades_over_draws(sizes[later] / sizes[earlier]),
            Estimate(0.0),
        )
        for earlier, later in pairwise(layers)
    )


def _evidence(
    setting: Initializations, drawn: pd.DataFrame, layers: Sequence[int], checks: tuple[Check, ...]
) -> Evidence:
    """The geometric means over draws, in the table's columns."""
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
        checks,
        setting.setup(layers=list(layers)),
        on=("layer", "batch_norm"),
        draw=lambda: gradient_sums_of_layers(first, layers, new_axes(width=6.4)),
        remarks=(
            "Measured sums are geometric means over draws: they differ from draw to draw by orders of magnitude "
            "without batch norm. `factor` is Σ|d|/|Σd|, and `factor_of_random_signs` is √N, its order of magnitude "
            "for N independent summands of random sign.",
            "The figure shows the first draw.",
        ),
    )
