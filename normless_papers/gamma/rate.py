"""Kim et al., section 3 and figure 6: the scale of a γ within a branch only changes its effective learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn

from normless.residual import residual_map
from normless_lab.plots import ROLE_INKS, Law, Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, DataName, NetworkName, Seeds
from normless_papers.claims import over_draws
from normless_papers.networks.seeded_inputs import MeasuredBatch, noise_batch, seeded, training_batch
from normless_papers.probes.gamma_rate import gamma_invariance, gamma_slopes, gamma_updates

# The invariance holds exactly for a norm without ε.
EPSILON = 1e-9


@artefact(
    "gamma/equation-22",
    basis="measurement",
)
def scale_invariance(
    context: Context, *, model: NetworkName[str], side: Data[int], examples: Seeds[int], factors: Sequence[float]
) -> Evidence:
    batch = noise_batch(context, side, examples)
    network = _in_float64(context, model, batch)
    tables = [
        gamma_invariance(network, batch.inputs.double(), batch.targets, factor=factor).assign(factor=factor)
        for factor in factors
    ]
    table = pd.concat(tables, ignore_index=True)
    table["gradient_deviation"] = (table["gradient_ratio"] * table["factor"] - 1).abs()
    inner = table[table["role"] == "other"]
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=sorted({1.0, *factors}))
    return Evidence(
        measured=_invariance_rows(table),
        # NaN without norms within branches.
        facts={"norms": inner["layer"].nunique(), **inner[["output_change", "gradient_deviation"]].max()},
        setup=_setup(model, batch) | {"factors": list(factors), "epsilon": EPSILON},
        draw=lambda: FIRST_STEPS(updates),
    )


@artefact(
    "gamma/equation-24",
    basis="measurement",
)
def effective_rate(
    context: Context,
    *,
    model: NetworkName[str],
    side: Data[int],
    examples: Seeds[int],
    scales: Sequence[float],
    rate: float,
) -> Evidence:
    batch = noise_batch(context, side, examples)
    network = _in_float64(context, model, batch)
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=scales, rate=rate)
    alone = updates[updates["varied"] == updates["role"]]
    # The gradient by the direction is measured at the scale nearest 1.
    reference = min(scales, key=lambda scale: abs(scale - 1))
    at_reference = alone[alone["scale"] == reference].set_index("layer")
    gradient = at_reference["predicted_update"] / at_reference["effective_rate"]
    # The step divided by η‖Γ‖⁻² times that gradient.
    alone = alone.assign(ratio=alone["update"] / (alone["effective_rate"] * alone["layer"].map(gradient)))
    slopes = gamma_slopes(alone).set_index("role")["slope"]
    inner = alone[(alone["role"] == "other") & (alone["scale"] != reference)]
    deviation = float((inner["ratio"] - 1).abs().max())
    rows = alone.groupby("role", sort=False).agg(
        norms=("layer", "nunique"), step_over_formula_low=("ratio", "min"), step_over_formula_high=("ratio", "max")
    )
    rows = rows.assign(slope=slopes, quantity="effective_lr", slope_if_invariant=-2.0)
    return Evidence(
        measured=rows.rename_axis("gamma").reset_index(),
        facts={"norms": inner["layer"].nunique(), "ratio_deviation": deviation, "slope": float(slopes["other"])},
        setup=_setup(model, batch) | {"scales": list(scales), "rate": rate, "epsilon": EPSILON},
        draw=lambda: FIRST_STEPS(alone),
    )


def _in_float64(context: Context, model: str, batch: MeasuredBatch) -> nn.Module:
    """Build the network in float64, with γ drawn between ½ and 1½ and a negligible ε."""
    with seeded(context.seed):
        network = batch.network(model)
        for path in residual_map(network, batch.inputs).norms:
            norm = network.get_submodule(path)
            assert isinstance(norm.weight, torch.Tensor)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            norm.eps = EPSILON  # type: ignore[assignment]
    return network.double()


def _invariance_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate by quantity, role and factor the worst norm of the role."""
    groups = table.groupby(["role", "factor"])
    outputs = groups[["output_change"]].max().rename(columns={"output_change": "measured"})
    outputs = outputs.assign(norms=groups.size(), by_formula=0.0)
    worst = table.loc[groups["gradient_deviation"].idxmax()].set_index(["role", "factor"])
    gradients = outputs.assign(
        measured=worst["gradient_ratio"], by_formula=1 / worst.index.get_level_values("factor")
    )
    rows = pd.concat({"invariance": outputs, "gradient": gradients}, names=["quantity"])
    return rows.reset_index().rename(columns={"role": "gamma"})


def _setup(model: str, batch: MeasuredBatch) -> dict[str, object]:
    return {"network": f"{model}, float64", "gamma": "uniform between 0.5 and 1.5", "inputs": batch.provenance}


ROLES = ("stem", "down", "other", "last")
TOGETHER = "all at once"
# The text's exponent for every γ whose scale changes no output, and that of all γ of a network at once.
TEXT, DERIVED = -2.0, -1.0


@artefact(
    "gamma/figure-6",
    basis="measurement",
)
def first_update(
    context: Context,
    *,
    model: NetworkName[str],
    data: DataName[str],
    examples: Seeds[int],
    batches: Seeds[int],
    scales: Sequence[float],
) -> Evidence:
    """Measure the slope for γ_others, for which section 3 derives it, and beyond it for other γ and for all at once.

    "We varied the initial value of γ" names no layer, and "this effective learning rate analysis is applicable to the
    γ parameters of all four categories" follows without a derivation. If the initial value of all γ is multiplied by
    s, a ResNet-V1 is homogeneous: a branch ends in a norm, so it has s times its output whatever it reads; the stem
    and the projections on the skip path as well; sums and ReLU keep the factor. The stream has s² times its variance,
    and the logits s times their value, z(s) = s z(1), for every direction Γ̂ of every γ. Hence

        ∇_Γ̂ L = (∂L/∂z)ᵀ ∂z/∂Γ̂ = s (∂L/∂z)ᵀ ∂z(1)/∂Γ̂,    ‖Γ̂₁ - Γ̂₀‖ = η ‖Γ‖⁻² ‖∇_Γ̂ L‖ ∝ s⁻² s = s⁻¹,

    as far as ∂L/∂z, the softmax less the target, does not depend on s. The slope is -1 and not -2: equation 21 leaves
    the output unchanged only if another norm follows, and no norm follows the stream.
    """
    drawn, updates = [], []
    for draw in range(batches):
        batch = training_batch(context, data, examples, epoch=draw)
        with seeded(context.seed + draw):
            network = batch.network(model)
        updates.append(gamma_updates(network, batch.inputs, batch.targets, scales=scales))
        drawn.append(gamma_slopes(updates[-1]))
    slopes = pd.concat(drawn, ignore_index=True)
    # The γ of each role varied alone, and all γ at once.
    by_role = slopes[slopes["varied"] == slopes["role"]].groupby("role")["slope"]
    names = {role: role for role in ROLES} | {TOGETHER: "all"}
    estimates = {name: over_draws(by_role.get_group(role)) for name, role in names.items()}
    rows = [(role, slope.mean, slope.deviation, slope.n) for role, slope in estimates.items()]
    measured = pd.DataFrame(rows, columns=["gamma", "slope", "deviation", "n"])
    return Evidence(
        measured=measured.assign(
            quantity="slope", text=TEXT, derived=[DERIVED if name == TOGETHER else TEXT for name in estimates]
        ),
        facts=estimates,
        setup={
            "network": model,
            "inputs": batch.provenance,
            "batches": batches,
            "seeds": f"{context.seed} to {context.seed + batches - 1}",
            "gamma": f"1 times {', '.join(f'{scale:g}' for scale in scales)}",
            "rate": 1e-3,
        },
        draw=lambda: FIRST_STEPS(updates[0]),
    )


def _relative_steps(updates: pd.DataFrame) -> pd.DataFrame:
    """Return the steps with each role's γ varied alone, relative to that at the smallest factor."""
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
