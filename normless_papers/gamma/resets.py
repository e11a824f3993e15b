"""Cases 3 and 4: downsampling blocks set the variance anew, and the stem sets that of the first stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.residual import ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, below, near
from normless_papers.gamma.analysed_networks import (
    analysis,
    beside_formula,
    drawn_networks,
    gammas_of,
    largest_change,
    mean_ratio,
    measured_moments,
)
from normless_papers.seeded_inputs import MeasuredBatch, noise_batch

# What the input is multiplied by, of which nothing should be left after a reset.
INPUT_SCALE = 7.0
NEXT = "Var[x_{l+1}]"


def _checks(facts: Mapping[str, Any], claim: str) -> list[Check]:
    """Of `ratio`, of what comes out over what γ says, and `change`, the largest one by a larger input."""
    unchanged = f"An input {INPUT_SCALE:g} times larger changes that by less than 2 %."
    return [
        near(f"{claim}, within 5 % in the mean.", facts["ratio"], 1, 0.05),
        below(unchanged, facts["change"], 0.02),
    ]


def _equation_15_checks(facts: Mapping[str, Any]) -> list[Check]:
    sides = below("Both sides of the sum have γ_down² and γ_last², within 1 %.", facts["sides"], 0.01)
    return [sides, *_checks(facts, "After the block there is half of γ_down² + γ_last²")]


@artefact("gamma/equation-15", basis="measurement", checks=_equation_15_checks)
def reset_of_original_networks(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """After a downsampling block of the original ResNet there is (γ_down² + γ_last²) / 2 (equations 12 to 15)."""
    batch, streams, both = _measured(context, model, side, examples, draws)
    resets, again = (table[table["equation"] == 15] for table in both)
    down, last, after = resets["gamma_down"] ** 2, resets["gamma_last"] ** 2, resets["stream_second_moment"]
    sides = [
        beside_formula("Var[g]", resets, resets["skip_second_moment"], down),
        beside_formula("Var[f]", resets, resets["branch_second_moment"], last),
    ]
    rows = pd.concat([*sides, beside_formula(NEXT, resets, after, (down + last) / 2)], ignore_index=True)
    facts = {
        "ratio": mean_ratio(rows, NEXT),
        "change": largest_change(again["stream_second_moment"], after),
        "sides": max(largest_change(side["ratio"]) for side in sides),
    }
    return analysis(context, batch, rows, facts, streams, network=model, input_scale=INPUT_SCALE)


def _equation_17_checks(facts: Mapping[str, Any]) -> list[Check]:
    return _checks(facts, "The variance after the block is γ_1² + γ_2²")


@artefact("gamma/equation-17", basis="measurement", checks=_equation_17_checks)
def reset_of_pre_activation_networks(
    context: Context, *, model: str, side: int, examples: int, draws: int
) -> Evidence:
    """After a downsampling block of a pre-activation network there is γ_1² + γ_2² (equations 16 and 17)."""
    batch, streams, both = _measured(context, model, side, examples, draws)
    # The first block's norm meets the small variance of the stem, where ε counts.
    resets, again = (table[(table["equation"] == 17) & (table["block"] > 1)] for table in both)
    after = resets["stream_variance"]
    rows = beside_formula(NEXT, resets, after, resets["gamma_down"] ** 2 + resets["gamma_last"] ** 2)
    facts = {"ratio": mean_ratio(rows, NEXT), "change": largest_change(again["stream_variance"], after)}
    return analysis(context, batch, rows, facts, streams, network=model, input_scale=INPUT_SCALE)


def _equation_19_checks(facts: Mapping[str, Any]) -> list[Check]:
    return _checks(facts, "After the stem's ReLU the second moment is γ_0² / 2")


@artefact("gamma/equation-19", basis="measurement", checks=_equation_19_checks)
def stem(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """After the stem's ReLU, before the pooling, there is γ_0² / 2 (equations 18 and 19)."""
    batch = noise_batch(context, side, examples)
    measurements, streams = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        (gamma,) = gammas_of(network, found, "stem")
        half = float(gamma.detach().double().square().mean()) / 2
        streams.append(measured_moments(network, batch, found, draw))
        pooled = float(streams[-1]["skip_second_moment"].iloc[0])
        plain, scaled = (_after_stem(network, found, scale * batch.inputs) for scale in (1.0, INPUT_SCALE))
        measurements += [
            ("stem", draw, 1.0, plain, half),
            ("stem", draw, INPUT_SCALE, scaled, half),
            ("after the pooling", draw, 1.0, pooled, half),
        ]
    table = pd.DataFrame(measurements, columns=["name", "draw", "scale", "after", "half"])
    rows = beside_formula("Var[x_1]", table, table["after"], table["half"], "scale")
    at_stem = rows[rows["block"] == "stem"]
    by_scale = at_stem.pivot_table(index="draw", columns="scale", values="measured")
    facts = {"ratio": mean_ratio(at_stem, "Var[x_1]"), "change": largest_change(by_scale[INPUT_SCALE], by_scale[1.0])}
    return analysis(context, batch, rows, facts, streams, network=model, input_scale=INPUT_SCALE)


@torch.no_grad()
def _after_stem(network: nn.Module, found: ResidualMap, inputs: Tensor) -> float:
    """The second moment after the stem's ReLU."""
    h = inputs
    for layer in found.stem_layers:
        h = network.get_submodule(layer.path)(h)
        if layer.kind == "activation":
            break
    return float(h.double().square().mean())


def _measured(
    context: Context, model: str, side: int, examples: int, draws: int
) -> tuple[MeasuredBatch, list[pd.DataFrame], list[pd.DataFrame]]:
    """The batch; of every draw the moments of its blocks; and of all draws those, and those of a larger input."""
    batch = noise_batch(context, side, examples)
    larger = replace(batch, inputs=INPUT_SCALE * batch.inputs)
    streams, scaled = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        streams.append(measured_moments(network, batch, found, draw))
        scaled.append(measured_moments(network, larger, found, draw))
    return batch, streams, [pd.concat(tables, ignore_index=True) for tables in (streams, scaled)]
