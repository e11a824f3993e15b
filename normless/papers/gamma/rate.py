"""Section 3: the scale of γ within a branch changes nothing but its own effective learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pandas as pd
import torch
from torch import nn

from normless.models.spec import build_model
from normless.papers.artefact import Context, artefact
from normless.papers.batches import MeasuredBatch, training_batch
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import check
from normless.probes.gammas.gamma_rate import gamma_invariance, gamma_slopes, gamma_updates
from normless.report.probes.gamma_updates import gamma_update_against_scale
from normless.residual import residual_map

# ε enters the invariance, which is one of the normalization without it.
EPSILON = 1e-9


@artefact("gamma/equation-22", basis="measurement")
def scale_invariance(context: Context, *, model: str, side: int, examples: int, factors: Sequence[float]) -> Evidence:
    """y(x; W, cΓ) = y(x; W, Γ), and the gradient by Γ is divided by c (equations 20 to 22)."""
    batch = _noise(context, side, examples)
    network = _in_float64(context, model, batch)
    tables = [
        gamma_invariance(network, batch.inputs.double(), batch.targets, factor=factor).assign(factor=factor)
        for factor in factors
    ]
    table = pd.concat(tables, ignore_index=True)
    table["gradient_times_c"] = table["gradient_ratio"] * table["factor"]
    inner, others = table[table["role"] == "other"], table[table["role"] != "other"]
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=sorted({1.0, *factors}))
    return Evidence(
        measured=_invariance_rows(table),
        checks=(
            check(
                "Multiplying γ of a norm within a branch changes the output by less than 10⁻⁶ of it.",
                float(inner["output_change"].max()) < 1e-6,
                largest_change=float(inner["output_change"].max()),
                norms=float(inner["layer"].nunique()),
            ),
            check(
                "It divides the gradient by c, to 10⁻⁵.",
                float((inner["gradient_times_c"] - 1).abs().max()) < 1e-5,
                largest_deviation=float((inner["gradient_times_c"] - 1).abs().max()),
            ),
            check(
                "γ_last, γ_down and γ_0 are not invariant: each of them changes the output by more than 10⁻³.",
                float(others["output_change"].min()) > 1e-3,
                smallest_change=float(others["output_change"].min()),
            ),
        ),
        setup=_setup(context, model, batch) | {"factors": list(factors), "epsilon": EPSILON},
        on=("quantity",),
        draw=lambda: gamma_update_against_scale(updates),
        remarks=(
            "The equation is about a norm that another norm follows, with one weight layer between: γ_others. The "
            "third check is that the measurement can tell: the text extends the analysis to all four categories, "
            "where the invariance does not hold.",
        ),
    )


@artefact("gamma/equation-24", basis="measurement")
def effective_rate(
    context: Context, *, model: str, side: int, examples: int, scales: Sequence[float], rate: float
) -> Evidence:
    """To first order the direction of Γ moves by η‖Γ‖⁻² times the gradient at that direction (equations 23, 24)."""
    batch = _noise(context, side, examples)
    network = _in_float64(context, model, batch)
    updates = gamma_updates(network, batch.inputs.double(), batch.targets, scales=scales, rate=rate)
    alone = updates[updates["varied"] == updates["role"]]
    ratio = alone["update"] / alone["predicted_update"]
    slopes = gamma_slopes(alone)
    inner = float(slopes[slopes["role"] == "other"]["slope"].item())
    gradients = _gradients_at_direction(alone)
    return Evidence(
        measured=_rate_rows(alone.assign(ratio=ratio), slopes, gradients),
        checks=(
            check(
                "In every norm the step of the direction is η‖Γ‖⁻² times the gradient at it, within 1 %.",
                bool((ratio - 1).abs().max() < 0.01),
                largest_deviation=float((ratio - 1).abs().max()),
                norms=float(alone["layer"].nunique()),
            ),
            check(
                "For γ_others that gradient does not depend on ‖Γ‖, within 1 %.",
                gradients["other"] < 1.01,
                largest_over_smallest=gradients["other"],
            ),
            check(
                "For γ_others the logarithmic slope of the step against ‖Γ‖ is -2 ± 0.02.",
                abs(inner + 2) < 0.02,
                slope=inner,
            ),
        ),
        setup=_setup(context, model, batch) | {"scales": list(scales), "rate": rate, "epsilon": EPSILON},
        on=("quantity",),
        draw=lambda: gamma_update_against_scale(alone),
        remarks=(
            "The text says that the analysis applies to γ of all four categories. The step is as the equation says "
            "in all of them, but the gradient at the direction depends on ‖Γ‖ where the stream does: the slopes of "
            "the other roles are in the table.",
        ),
    )


def _noise(context: Context, side: int, examples: int) -> MeasuredBatch:
    return training_batch(context, f"gaussian(image_shape=(3, {side}, {side}), train={examples})", examples)


def _in_float64(context: Context, model: str, batch: MeasuredBatch) -> nn.Module:
    """The network in float64, γ drawn between ½ and 1½, and with hardly any ε."""
    with seeded(context.seed):
        network = build_model(model, classes=batch.classes, image_shape=tuple(batch.inputs.shape[1:]))  # type: ignore[arg-type]
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


def _gradients_at_direction(alone: pd.DataFrame) -> dict[str, float]:
    """Of every role, the largest over the smallest gradient at one norm's direction, over the scales."""
    size = alone["predicted_update"] / alone["effective_rate"]
    spread = size.groupby([alone["role"], alone["layer"]]).agg(["max", "min"])
    over = (spread["max"] / spread["min"].where(spread["min"] > 0)).fillna(inf)
    return {str(role): float(value) for role, value in over.groupby("role").max().items()}


def _rate_rows(alone: pd.DataFrame, slopes: pd.DataFrame, gradients: dict[str, float]) -> pd.DataFrame:
    rows = []
    for role, group in alone.groupby("role", sort=False):
        rows.append(
            {
                "quantity": "effective_lr",
                "gamma": role,
                "norms": group["layer"].nunique(),
                "step_over_formula_low": group["ratio"].min(),
                "step_over_formula_high": group["ratio"].max(),
                "gradient_largest_over_smallest": gradients[str(role)],
                "slope": float(slopes[slopes["role"] == role]["slope"].item()),
                "slope_if_invariant": -2.0,
            }
        )
    return pd.DataFrame(rows)


def _setup(context: Context, model: str, batch: MeasuredBatch) -> dict[str, object]:
    gamma = "uniform between 0.5 and 1.5"
    return {"network": f"{model}, float64", "gamma": gamma, "inputs": batch.provenance, "seed": context.seed}
