"""Kim et al., cases 1 to 4: γ_last accumulates on the stream, and downsampling blocks and the stem reset it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.residual import ResidualBlock, ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, below, check, near, over_draws
from normless_papers.claims.agreement import observed
from normless_papers.gamma.analysed_networks import (
    analysis,
    beside_formula,
    gammas_of,
    largest_change,
    mean_ratio,
    over_drawn_networks,
    set_gammas,
    stream_of,
)
from normless_papers.networks.seeded_inputs import MeasuredBatch, noise_batch, training_batch

# γ_last of the first and the last block; it rises from block to block.
FIRST, LAST = 0.3, 2.0
SMALL, LARGE = 0.5, 3.0
# Second moments at the start of a stage: far above γ_last², and below it.
STARTS = (4.0, 0.25)
CONSTANT = 1.0
# Factor on the input, which a reset should cancel.
INPUT_SCALE = 7.0
NEXT = "Var[x_{l+1}]"


def _accumulation_checks(facts: Mapping[str, Any]) -> list[Check]:
    """Check `branch` and `stream` relative to the formula, `change`, and the largest shares `small` and `large`."""
    branch = "The branch's variance is γ_last², within 5 % on average over the blocks."
    change = "First weights ten times and other γ three times larger change no branch's variance by 1 %."
    stream = "The stream's variance is that at its start plus the sum of γ_last², within 5 % on average."
    small, large = facts["small"], facts["large"]
    return [
        near(branch, facts["branch"], 1, 0.05),
        below(change, facts["change"], 0.01),
        near(stream, facts["stream"], 1, 0.05),
        check(
            f"With γ_last = {SMALL:g} the skip path dominates every block, and with {LARGE:g} it does not.",
            max(small) < 1 < min(large),
            largest_share_small=max(small),
            least_largest_share_large=min(large),
        ),
    ]


@artefact("gamma/equation-6", basis="measurement", checks=_accumulation_checks)
def full_accumulation(context: Context, *, model: str, features: int, examples: int, draws: int) -> Evidence:
    batch = training_batch(context, f"gaussian(image_shape=({features},), train={examples})", examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        last = gammas_of(network, structure, "last")
        step = (LAST - FIRST) / max(1, len(last) - 1)
        set_gammas(last, [FIRST + step * index for index in range(len(last))])
        rising = stream_of(network, structure, batch.inputs)
        _disturb_inside(network, structure)
        disturbed = stream_of(network, structure, batch.inputs)
        return rising, disturbed, _domination(network, batch, structure)

    table, disturbed, dominance = over_drawn_networks(context, model, batch, draws, measure)
    squares, skip = table["gamma_last"] ** 2, table["skip_variance"]
    starts = table.groupby("draw")["skip_variance"].transform("first")
    before = squares.groupby(table["draw"]).cumsum() - squares
    parts = [
        beside_formula("Var[f_l]", table, table["branch_variance"], squares, "gamma_last"),
        beside_formula(NEXT, table, table["stream_variance"], skip + squares, "gamma_last"),
        beside_formula("Var[x_l]", table, skip, starts + before, "gamma_last"),
        beside_formula(
            "dominance_condition", dominance, dominance["share"], dominance["expected_share"], "gamma_last"
        ),
    ]
    rows = pd.concat(parts, ignore_index=True)
    shares = dominance.groupby("gamma_last")["share"].agg(tuple)
    facts = {
        "branch": mean_ratio(rows, "Var[f_l]"),
        "stream": mean_ratio(rows, "Var[x_l]"),
        "change": largest_change(disturbed["branch_variance"], table["branch_variance"]),
        "small": shares[SMALL],
        "large": shares[LARGE],
    }
    rises = f"rising from {FIRST:g} in the first block to {LAST:g} in the last"
    return analysis(context, batch, rows, facts, table, network=model, gamma_last=rises)


@torch.no_grad()
def _disturb_inside(network: nn.Module, structure: ResidualMap) -> None:
    """Enlarge the weights before the last norm of every branch, and the γ within branches."""
    for block in structure.blocks:
        kinds = [layer.kind for layer in block.branch_layers]
        last_norm = len(kinds) - 1 - kinds[::-1].index("norm")
        for layer in block.branch_layers[:last_norm]:
            if layer.kind == "weight":
                network.get_parameter(f"{layer.path}.weight").mul_(10.0)
    for gamma in gammas_of(network, structure, "other"):
        gamma.mul_(3.0)


def _domination(network: nn.Module, batch: MeasuredBatch, structure: ResidualMap) -> pd.DataFrame:
    """Return the largest share of a branch in its sum, with every γ_last small and with every γ_last large."""
    last, rows = gammas_of(network, structure, "last"), []
    for value in (SMALL, LARGE):
        set_gammas(last, [value] * len(last))
        table = stream_of(network, structure, batch.inputs)
        share = table["branch_variance"] / table["skip_variance"]
        worst = int(share.to_numpy().argmax())
        expected = value**2 / (float(table["skip_variance"].iloc[0]) + worst * value**2)
        rows.append((table["name"].iloc[worst], value, float(share.iloc[worst]), expected))
    return pd.DataFrame(rows, columns=["name", "gamma_last", "share", "expected_share"])


# Equations 7 to 11 over draws: the claim of each quantity, its value and tolerance. Like the text, they neglect the
# mean of a block's input.
_CLAIMS = {
    "step": (
        "After a block half of its input and half of γ_last² remain (equation 10), within 5 % on average.",
        1,
        0.05,
    ),
    "recursion": ("After several blocks equation 11 gives the second moment, within 5 % on average.", 1, 0.05),
    "left_after_two": ("After two blocks a quarter of a larger start remains, between 20 and 30 %.", 0.25, 0.05),
    "limit": ("For constant γ_last the second moment converges to γ_last², within 10 %.", 1, 0.1),
}


def _half_checks(facts: Mapping[str, Estimate]) -> list[Check]:
    branch = below("The branch's second moment is γ_last² within 1 %.", facts["branch"].mean, 0.01)
    return [branch, *(near(claim[0], facts[name], *claim[1:]) for name, claim in _CLAIMS.items())]


@artefact("gamma/equation-11", basis="measurement", checks=_half_checks)
def half_accumulation(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    batch = noise_batch(context, side, examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        stream, stages = stream_of(network, structure, batch.inputs), _identity_blocks(network, structure, batch)
        drawn = pd.concat([_centred(network, structure, stages, start) for start in STARTS])
        last = gammas_of(network, structure, "last")
        set_gammas(last, [CONSTANT] * len(last))
        return stream, drawn, _centred(network, structure, stages, STARTS[1])

    stream, drawn, constant = over_drawn_networks(context, model, batch, draws, measure)
    inside = stream[stream["equation"] == 11]
    squares = inside["gamma_last"] ** 2
    with_mean = (inside["skip_second_moment"] + squares) / 2
    parts = [
        beside_formula("Var[f_l]", inside, inside["branch_second_moment"], squares),
        beside_formula(NEXT, drawn, drawn["measured"], drawn["by_step"], "start"),
        beside_formula("Var[x_l]", drawn, drawn["measured"], drawn["by_recursion"], "start"),
        # A block of the network with its own input.
        beside_formula(f"{NEXT} with the mean", inside, inside["stream_second_moment"], with_mean),
    ]
    started = f"centred noise of second moment {' or '.join(map(str, STARTS))} at the start of a stage"
    facts = _half_facts(drawn, constant, stream)
    rows = pd.concat(parts, ignore_index=True)
    return analysis(context, batch, rows, facts, stream, network=model, stream=started)


def _identity_blocks(
    network: nn.Module, structure: ResidualMap, batch: MeasuredBatch
) -> list[list[tuple[ResidualBlock, torch.Size]]]:
    """Return, by stage, the blocks with an identity skip path and the shape of each block's input."""
    calls, _ = observed(network, [network.get_submodule(block.name) for block in structure.blocks], batch.inputs)
    stages: list[list[tuple[ResidualBlock, torch.Size]]] = [[]]
    for block, (inputs, _) in zip(structure.blocks, calls, strict=True):
        if block.identity_skip:
            stages[-1].append((block, inputs[0].shape))
        else:
            stages.append([])
    return [stage for stage in stages if stage]


@torch.no_grad()
def _centred(
    network: nn.Module,
    structure: ResidualMap,
    stages: Sequence[Sequence[tuple[ResidualBlock, torch.Size]]],
    start: float,
) -> pd.DataFrame:
    """Run the blocks of each stage in turn on centred noise with the second moment of the previous block's output."""
    gammas = dict(zip((block.name for block in structure.blocks), gammas_of(network, structure, "last"), strict=True))
    rows = []
    for stage in stages:
        measured = expected = start
        for place, (block, shape) in enumerate(stage, 1):
            square = float(gammas[block.name].double().square().mean())
            by_step, expected = (measured + square) / 2, (expected + square) / 2
            output = network.get_submodule(block.name)(measured**0.5 * torch.randn(shape))
            measured = float(output.double().square().mean())
            rows.append((block.name, place, start, square**0.5, measured, by_step, expected))
    columns = ["name", "place", "start", "gamma_last", "measured", "by_step", "by_recursion"]
    return pd.DataFrame(rows, columns=columns)


def _half_facts(drawn: pd.DataFrame, constant: pd.DataFrame, stream: pd.DataFrame) -> dict[str, Estimate]:
    def ratio(by: str) -> Estimate:
        return over_draws((drawn["measured"] / drawn[by]).groupby(drawn["draw"]).mean())

    second = drawn[drawn["place"] == 2].pivot_table(index=["draw", "name"], columns="start", values="measured")
    left = (second[STARTS[0]] - second[STARTS[1]]) / (STARTS[0] - STARTS[1])
    end = constant[constant["place"] == constant["place"].max()]
    return {
        "branch": Estimate(largest_change(stream["branch_second_moment"], stream["gamma_last"] ** 2)),
        "step": ratio("by_step"),
        "recursion": ratio("by_recursion"),
        "left_after_two": over_draws(left.groupby("draw").mean()),
        "limit": over_draws(end.groupby("draw")["measured"].mean() / CONSTANT**2),
    }


def _reset_checks(facts: Mapping[str, Any], claim: str) -> list[Check]:
    """Check `ratio`, of the output's second moment to that by γ, and `change`, the largest by a larger input."""
    unchanged = f"An input {INPUT_SCALE:g} times larger changes it by less than 2 %."
    return [
        near(f"{claim}, within 5 % on average.", facts["ratio"], 1, 0.05),
        below(unchanged, facts["change"], 0.02),
    ]


def _equation_15_checks(facts: Mapping[str, Any]) -> list[Check]:
    claim = "The two sides of the sum have second moments γ_down² and γ_last², within 1 %."
    sides = below(claim, facts["sides"], 0.01)
    return [sides, *_reset_checks(facts, "The second moment after the block is half of γ_down² + γ_last²")]


@artefact("gamma/equation-15", basis="measurement", checks=_equation_15_checks)
def reset_of_original_networks(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    batch = noise_batch(context, side, examples)
    stream, scaled = _by_input(context, model, batch, draws)
    resets, again = (table[table["equation"] == 15] for table in (stream, scaled))
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
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


@artefact(
    "gamma/equation-17",
    basis="measurement",
    checks=partial(_reset_checks, claim="The variance after the block is γ_1² + γ_2²"),
)
def reset_of_pre_activation_networks(
    context: Context, *, model: str, side: int, examples: int, draws: int
) -> Evidence:
    batch = noise_batch(context, side, examples)
    stream, scaled = _by_input(context, model, batch, draws)
    # The first block's norm reads the small variance of the stem, for which ε matters.
    resets, again = (table[(table["equation"] == 17) & (table["block"] > 1)] for table in (stream, scaled))
    after = resets["stream_variance"]
    rows = beside_formula(NEXT, resets, after, resets["gamma_down"] ** 2 + resets["gamma_last"] ** 2)
    facts = {"ratio": mean_ratio(rows, NEXT), "change": largest_change(again["stream_variance"], after)}
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


def _by_input(context: Context, model: str, batch: MeasuredBatch, draws: int) -> list[pd.DataFrame]:
    """Measure the moments of the blocks of all draws, and those with a larger input."""

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        return [stream_of(network, structure, scale * batch.inputs) for scale in (1.0, INPUT_SCALE)]

    return over_drawn_networks(context, model, batch, draws, measure)


@artefact(
    "gamma/equation-19",
    basis="measurement",
    checks=partial(_reset_checks, claim="After the stem's ReLU the second moment is γ_0² / 2"),
)
def stem(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    batch = noise_batch(context, side, examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        (gamma,) = gammas_of(network, structure, "stem")
        half = float(gamma.detach().double().square().mean()) / 2
        stream = stream_of(network, structure, batch.inputs)
        plain, scaled = (_after_stem(network, structure, scale * batch.inputs) for scale in (1.0, INPUT_SCALE))
        rows = [
            ("stem", 1.0, plain, half),
            ("stem", INPUT_SCALE, scaled, half),
            ("after the pooling", 1.0, float(stream["skip_second_moment"].iloc[0]), half),
        ]
        return stream, pd.DataFrame(rows, columns=["name", "scale", "after", "half"])

    stream, table = over_drawn_networks(context, model, batch, draws, measure)
    rows = beside_formula("Var[x_1]", table, table["after"], table["half"], "scale")
    at_stem = rows[rows["block"] == "stem"]
    by_scale = at_stem.pivot_table(index="draw", columns="scale", values="measured")
    facts = {"ratio": mean_ratio(at_stem, "Var[x_1]"), "change": largest_change(by_scale[INPUT_SCALE], by_scale[1.0])}
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


@torch.no_grad()
def _after_stem(network: nn.Module, structure: ResidualMap, inputs: Tensor) -> float:
    """Return the second moment after the stem's ReLU."""
    h = inputs
    for layer in structure.stem_layers:
        h = network.get_submodule(layer.path)(h)
        if layer.kind == "activation":
            break
    return float(h.double().square().mean())
