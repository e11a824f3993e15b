"""Section 3 and figure 6: the scale of γ within a branch changes its effective learning rate and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from normless.plots import ROLE_INKS, Law, Plot
from normless.residual import residual_map
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, over_draws, within
from normless_papers.probes.gamma_rate import gamma_invariance, gamma_slopes, gamma_updates
from normless_papers.seeded_inputs import MeasuredBatch, noise_batch, seeded, training_batch

# ε enters the invariance, which is one of the normalization without it.
EPSILON = 1e-9


@dataclass(frozen=True)
class InvarianceFacts:
    """Over the norms within branches and the factors c, the largest of each.

    Attributes:
        norms: how many norms there are.
        output_change: of the logits, relative to them, by cΓ in place of Γ.
        gradient_deviation: |c ‖∇(cΓ)‖ / ‖∇(Γ)‖ - 1|.
    """

    norms: int
    output_change: float
    gradient_deviation: float


def _equation_22_checks(found: InvarianceFacts) -> list[Check]:
    return [
        check(
            "Multiplying γ of a norm within a branch changes the output by less than 10⁻⁶ of it.",
            found.norms > 0 and found.output_change < 1e-6,
            largest_change=found.output_change,
            norms=found.norms,
        ),
        check(
            "It divides the gradient by c, to 10⁻⁵.",
            found.norms > 0 and found.gradient_deviation < 1e-5,
            largest_deviation=found.gradient_deviation,
        ),
    ]


@artefact("gamma/equation-22", basis="measurement", checks=_equation_22_checks)
def scale_invariance(context: Context, *, model: str, side: int, examples: int, factors: Sequence[float]) -> Evidence:
    """y(x; W, cΓ) = y(x; W, Γ), and the gradient by Γ is divided by c (equations 20 to 22)."""
    batch = noise_batch(context, side, examples)
    network = _in_float64(context, model, batch)
    tables = [
        gamma_invariance(network, batch.inputs.double(), batch.targets, factor=factor).assign(factor=factor)
        for factor in factors
    ]
    table = pd.concat(tables, ignore_index=True)
    table["gradient_times_c"] = table["gradient_ratio"] * table["factor"]
    inner = table[table["role"] == "other"]
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=sorted({1.0, *factors}))
    return Evidence(
        measured=_invariance_rows(table),
        facts=InvarianceFacts(
            norms=int(inner["layer"].nunique()),
            output_change=float(inner["output_change"].max()),
            gradient_deviation=float((inner["gradient_times_c"] - 1).abs().max()),
        ),
        setup=_setup(context, model, batch) | {"factors": list(factors), "epsilon": EPSILON},
        on=("quantity",),
        draw=lambda: FIRST_STEPS(updates),
        remarks=(
            "The equation is about a norm that another norm follows, with one weight layer between: γ_others. "
            "γ_last, γ_down and γ_0 are in the table: they change the output.",
        ),
    )


@dataclass(frozen=True)
class EffectiveRateFacts:
    """The first step of the direction of γ_others at several sizes of Γ.

    Attributes:
        norms: how many norms there are.
        ratio_deviation: of the step over η‖Γ‖⁻² times the gradient at the direction, which is measured at another
            size of Γ, the largest deviation from 1.
        slope: of the logarithm of the step against that of ‖Γ‖.
    """

    norms: int
    ratio_deviation: float
    slope: float


def _equation_24_checks(found: EffectiveRateFacts) -> list[Check]:
    return [
        check(
            "Whatever ‖Γ‖ is, the step of the direction of γ_others is η‖Γ‖⁻² times one gradient, within 1 %.",
            found.norms > 0 and found.ratio_deviation < 0.01,
            largest_deviation=found.ratio_deviation,
            norms=found.norms,
        ),
        check(
            "The logarithmic slope of the step against ‖Γ‖ is -2 ± 0.02.",
            abs(found.slope + 2) < 0.02,
            slope=found.slope,
        ),
    ]


@artefact("gamma/equation-24", basis="measurement", checks=_equation_24_checks)
def effective_rate(
    context: Context, *, model: str, side: int, examples: int, scales: Sequence[float], rate: float
) -> Evidence:
    """To first order the direction of Γ moves by η‖Γ‖⁻² times the gradient at that direction (equations 23, 24)."""
    batch = noise_batch(context, side, examples)
    network = _in_float64(context, model, batch)
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=scales, rate=rate)
    alone = updates[updates["varied"] == updates["role"]]
    ratio = _step_over_formula(alone)
    slopes = gamma_slopes(alone)
    inner = (alone["role"] == "other") & (alone["scale"] != _reference(alone))
    return Evidence(
        measured=_rate_rows(alone.assign(ratio=ratio), slopes),
        facts=EffectiveRateFacts(
            norms=int(alone[inner]["layer"].nunique()),
            ratio_deviation=float((ratio[inner] - 1).abs().max()),
            slope=float(slopes[slopes["role"] == "other"]["slope"].item()),
        ),
        setup=_setup(context, model, batch) | {"scales": list(scales), "rate": rate, "epsilon": EPSILON},
        on=("quantity",),
        draw=lambda: FIRST_STEPS(alone),
        remarks=(
            "The gradient at the direction is measured at the size of Γ nearest the drawn one, and the step at all "
            "others. gamma/figure-6 checks that the analysis applies to γ of all four categories; their numbers "
            "are in the table.",
        ),
    )


def _in_float64(context: Context, model: str, batch: MeasuredBatch) -> nn.Module:
    """The network in float64, γ drawn between ½ and 1½, and with hardly any ε."""
    with seeded(context.seed):
        network = batch.network(model)
        for path in residual_map(network, batch.inputs).norms:
            norm = network.get_submodule(path)
            assert isinstance(norm.weight, torch.Tensor)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            norm.eps = EPSILON  # type: ignore[assignment]
    return network.double()


def _invariance_rows(table: pd.DataFrame) -> pd.DataFrame:
    """A row per quantity, role and factor: the worst over the norms of the role."""
    rows = []
    for (role, factor), group in table.groupby(["role", "factor"], sort=False):
        about = {"gamma": role, "factor": factor, "norms": len(group)}
        rows.append({"quantity": "invariance", **about, "measured": group["output_change"].max(), "by_formula": 0.0})
        ratio = group["gradient_ratio"].iloc[int(np.argmax(np.abs(group["gradient_times_c"] - 1)))]
        rows.append({"quantity": "gradient", **about, "measured": ratio, "by_formula": 1 / float(factor)})  # type: ignore[arg-type]
    return pd.DataFrame(rows).sort_values(["quantity", "gamma", "factor"], ascending=[False, True, True])


def _reference(alone: pd.DataFrame) -> float:
    """The scale nearest 1, at which the gradient at the direction is measured."""
    return float(min(alone["scale"].unique(), key=lambda scale: abs(scale - 1)))


def _step_over_formula(alone: pd.DataFrame) -> pd.Series:
    """The step of every norm at every scale over η‖Γ‖⁻² times the gradient at its direction at the reference."""
    at_reference = alone[alone["scale"] == _reference(alone)].set_index("layer")
    gradient = at_reference["predicted_update"] / at_reference["effective_rate"]
    return alone["update"] / (alone["effective_rate"] * alone["layer"].map(gradient))


def _rate_rows(alone: pd.DataFrame, slopes: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for role, group in alone.groupby("role", sort=False):
        rows.append(
            {
                "quantity": "effective_lr",
                "gamma": role,
                "norms": group["layer"].nunique(),
                "step_over_formula_low": group["ratio"].min(),
                "step_over_formula_high": group["ratio"].max(),
                "slope": float(slopes[slopes["role"] == role]["slope"].item()),
                "slope_if_invariant": -2.0,
            }
        )
    return pd.DataFrame(rows)


def _setup(context: Context, model: str, batch: MeasuredBatch) -> dict[str, object]:
    gamma = "uniform between 0.5 and 1.5"
    return {"network": f"{model}, float64", "gamma": gamma, "inputs": batch.provenance}


ROLES = ("stem", "down", "other", "last")
NEAR = 0.2


def _figure_6_checks(slopes: Mapping[str, Estimate]) -> list[Check]:
    return [
        within(f"The slope is -2 ± 0.2 for γ_{role}.", slopes[role], -2 - NEAR, -2 + NEAR)
        for role in ("other", "last", "down", "stem")
    ]


@artefact("gamma/figure-6", basis="measurement", checks=_figure_6_checks)
def first_update(
    context: Context, *, model: str, data: str, examples: int, batches: int, scales: Sequence[float]
) -> Evidence:
    """log ‖Γ̂₁ - Γ̂₀‖ against log ‖Γ‖ for γ that starts at several sizes: a slope near -2."""
    found, updates = [], []
    for draw in range(batches):
        batch = training_batch(context, data, examples, epoch=draw)
        with seeded(context.seed + draw):
            network = batch.network(model)
        updates.append(gamma_updates(network, batch.inputs, batch.targets, scales=scales))
        found.append(gamma_slopes(updates[-1]).assign(draw=draw))
    slopes = pd.concat(found, ignore_index=True)
    alone = slopes[slopes["varied"] == slopes["role"]]
    together = slopes[(slopes["varied"] == "all") & (slopes["role"] == "all")]
    estimates = {role: over_draws(alone[alone["role"] == role]["slope"]) for role in ROLES}
    estimates["all at once"] = over_draws(together["slope"])
    rows = [
        {
            "quantity": "slope",
            "gamma": role,
            "slope": one.mean,
            "deviation": one.deviation,
            "n": one.n,
            "theory": -2.0,
        }
        for role, one in estimates.items()
    ]
    return Evidence(
        measured=pd.DataFrame(rows),
        facts=estimates,
        setup={
            "network": model,
            "inputs": batch.provenance,
            "batches": batches,
            "seeds": f"{context.seed} to {context.seed + batches - 1}",
            "gamma": f"1 times {', '.join(f'{scale:g}' for scale in scales)}",
            "rate": 1e-3,
        },
        on=("quantity",),
        draw=lambda: FIRST_STEPS(updates[0]),
        remarks=(
            "The paper does not say which layers it regresses over. The section is about γ_others, and the text adds "
            "that the analysis is applicable to γ of all four categories: each is varied by itself here, with a "
            "height of its own for every norm. The slope is -2 by theory for γ_others alone; γ_last and γ_down are "
            "in the stream, whose other γ stay. With the γ of the whole network at once it is "
            f"{estimates['all at once'].mean:.2f}, which is not asked.",
        ),
    )


def _relative_steps(updates: pd.DataFrame) -> pd.DataFrame:
    """Each role's γ varied by themselves: steps over that at the smallest factor."""
    shown = updates[updates["varied"] == updates["role"]].sort_values("scale")
    first = shown.groupby("layer", sort=False)["update"].transform("first")
    return shown.assign(relative=shown["update"] / first)


FIRST_STEPS = Plot(
    "lines",
    _relative_steps,
    x="scale",
    y="relative",
    by="role",
    name="γ {}",
    each="layer",
    summary=None,
    inks=ROLE_INKS,
    log="xy",
    laws=[Law("slope −2", lambda scale: (scale / scale.min()) ** -2)],
    names="legend",
    title="First step of γ's direction, one role's γ at a time",
    x_label="factor on γ",
    y_label="step, relative to that at the smallest factor",
)
