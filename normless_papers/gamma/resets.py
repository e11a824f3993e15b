"""Cases 3 and 4: downsampling blocks set the variance anew, and the stem sets that of the first stage."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from normless.residual import ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, over_draws, within
from normless_papers.gamma.analysed_networks import (
    averaged,
    beside_formula,
    draw_stream,
    drawn_networks,
    gammas_of,
    measured_moments,
    setup_of,
)
from normless_papers.seeded_inputs import MeasuredBatch, noise_batch

# What the input is multiplied by, of which nothing should be left after a reset.
INPUT_SCALE = 7.0


@dataclass(frozen=True)
class ResetFacts:
    """What sets the variance anew.

    Attributes:
        ratio: of what comes out over what γ says, in the mean over the places, over draws.
        change: the largest relative change of that by a larger input.
        sides: the largest relative deviation of a side of the sum from its γ²; 0 where it is not asked.
    """

    ratio: Estimate
    change: float
    sides: float = 0.0

    def checks(self, claim: str) -> list[Check]:
        """That the ratio is 1, which `claim` says, and that the input's size does not matter."""
        return [
            within(f"{claim}, within 5 % in the mean.", self.ratio, 0.95, 1.05),
            check(
                f"An input {INPUT_SCALE:g} times larger changes that by less than 2 %.",
                self.change < 0.02,
                largest_change=self.change,
            ),
        ]


def _equation_15_checks(found: ResetFacts) -> list[Check]:
    sides = check(
        "Both sides of the sum have γ_down² and γ_last², within 1 %.",
        found.sides < 0.01,
        largest_deviation=found.sides,
    )
    return [sides, *found.checks("After the block there is half of γ_down² + γ_last²")]


@artefact("gamma/equation-15", basis="measurement", checks=_equation_15_checks)
def reset_of_original_networks(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """After a downsampling block of the original ResNet there is (γ_down² + γ_last²) / 2 (equations 12 to 15)."""
    batch, tables, scaled = _measured(context, model, side, examples, draws)
    resets, again = (pd.concat(one, ignore_index=True) for one in (tables, scaled))
    resets, again = (table[table["equation"] == 15].reset_index(drop=True) for table in (resets, again))
    down, last = resets["gamma_down"] ** 2, resets["gamma_last"] ** 2
    parts = (
        beside_formula("Var[g]", resets, resets["skip_second_moment"], down),
        beside_formula("Var[f]", resets, resets["branch_second_moment"], last),
        beside_formula("Var[x_{l+1}]", resets, resets["stream_second_moment"], (down + last) / 2),
    )
    rows = pd.concat(parts, ignore_index=True)
    sides = rows[rows["quantity"] != "Var[x_{l+1}]"]["ratio"]
    return Evidence(
        measured=averaged(rows),
        facts=ResetFacts(
            _ratio(rows, "Var[x_{l+1}]"),
            _change(resets["stream_second_moment"], again["stream_second_moment"]),
            float((sides - 1).abs().max()),
        ),
        setup=setup_of(context, model, batch, draws) | {"input_scale": INPUT_SCALE},
        on=("quantity",),
        draw=lambda: draw_stream(tables[0]),
        remarks=("Var of the paper is the second moment: it neglects the mean of what a ReLU gives.",),
    )


def _equation_17_checks(found: ResetFacts) -> list[Check]:
    return found.checks("The variance after the block is γ_1² + γ_2²")


@artefact("gamma/equation-17", basis="measurement", checks=_equation_17_checks)
def reset_of_pre_activation_networks(
    context: Context, *, model: str, side: int, examples: int, draws: int
) -> Evidence:
    """After a downsampling block of a pre-activation network there is γ_1² + γ_2² (equations 16 and 17)."""
    batch, tables, scaled = _measured(context, model, side, examples, draws)
    # The first block's norm meets the small variance of the stem, where ε counts.
    resets, again = (
        table[(table["equation"] == 17) & (table["block"] > 1)].reset_index(drop=True)
        for table in (pd.concat(one, ignore_index=True) for one in (tables, scaled))
    )
    both = resets["gamma_down"] ** 2 + resets["gamma_last"] ** 2
    rows = beside_formula("Var[x_{l+1}]", resets, resets["stream_variance"], both)
    return Evidence(
        measured=averaged(rows),
        facts=ResetFacts(_ratio(rows, "Var[x_{l+1}]"), _change(resets["stream_variance"], again["stream_variance"])),
        setup=setup_of(context, model, batch, draws) | {"input_scale": INPUT_SCALE},
        on=("quantity",),
        draw=lambda: draw_stream(tables[0]),
        remarks=("γ_1 is that of the norm before the fork, which branch and skip path both read.",),
    )


def _equation_19_checks(found: ResetFacts) -> list[Check]:
    return found.checks("After the stem's ReLU the second moment is γ_0² / 2")


@artefact("gamma/equation-19", basis="measurement", checks=_equation_19_checks)
def stem(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """After the stem's ReLU, before the pooling, there is γ_0² / 2 (equations 18 and 19)."""
    batch = noise_batch(context, side, examples)
    rows, streams = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        (gamma,) = gammas_of(network, found, "stem")
        square = float(gamma.detach().double().square().mean())
        streams.append(measured_moments(network, batch, found, draw))
        pooled = float(streams[-1]["skip_second_moment"].iloc[0])
        for scale in (1.0, INPUT_SCALE):
            measured = _after_stem(network, found, scale * batch.inputs)
            rows.append({"name": "stem", "draw": draw, "scale": scale, "measured": measured, "gamma": square})
        rows.append({"name": "after the pooling", "draw": draw, "scale": 1.0, "measured": pooled, "gamma": square})
    table = pd.DataFrame(rows)
    found_rows = beside_formula("Var[x_1]", table, table["measured"], table["gamma"] / 2, "scale")
    at_stem = found_rows[found_rows["block"] == "stem"]
    one, other = (
        at_stem[at_stem["scale"] == scale]["measured"].reset_index(drop=True) for scale in (1.0, INPUT_SCALE)
    )
    return Evidence(
        measured=averaged(found_rows),
        facts=ResetFacts(_ratio(at_stem, "Var[x_1]"), _change(one, other)),
        setup=setup_of(context, model, batch, draws) | {"input_scale": INPUT_SCALE},
        on=("quantity",),
        draw=lambda: draw_stream(streams[0]),
        remarks=("The row after the pooling is what the first block reads; max pooling, ignored there, raises it.",),
    )


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
    """The batch, and of every draw the moments of its blocks, on it and on a multiple of it."""
    batch = noise_batch(context, side, examples)
    larger = MeasuredBatch(INPUT_SCALE * batch.inputs, batch.targets, batch.classes, batch.provenance)
    tables, scaled = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        tables.append(measured_moments(network, batch, found, draw))
        scaled.append(measured_moments(network, larger, found, draw))
    return batch, tables, scaled


def _ratio(rows: pd.DataFrame, quantity: str) -> Estimate:
    return over_draws(rows[rows["quantity"] == quantity].groupby("draw")["ratio"].mean())


def _change(one: pd.Series, other: pd.Series) -> float:
    return float((other / one - 1).abs().max())
