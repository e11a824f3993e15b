"""Cases 1 and 2: what γ_last adds to the stream of a pre-activation network, and of the original ResNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

from normless.residual import ResidualBlock, ResidualMap
from normless_papers.agreement import observed
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, below, check, near, over_draws
from normless_papers.gamma.analysed_networks import (
    analysis,
    beside_formula,
    drawn_networks,
    gammas_of,
    largest_change,
    mean_ratio,
    measured_moments,
    multiply,
    set_gammas,
)
from normless_papers.seeded_inputs import MeasuredBatch, noise_batch, training_batch

# γ_last of the first and the last block, where it rises from block to block.
FIRST, LAST = 0.3, 2.0
SMALL, LARGE = 0.5, 3.0


def _accumulation_checks(facts: Mapping[str, Any]) -> list[Check]:
    """Of `branch` and `stream`, over the formula's; `change`; and largest shares of a branch, `small` and `large`."""
    branch = "The branch's variance is γ_last², within 5 % in the mean over the blocks."
    change = "Ten times larger first weights and three times larger other γ change no branch's variance by 1 %."
    stream = "The stream's variance is that at its start plus the sum of γ_last², within 5 % in the mean."
    small, large = facts["small"], facts["large"]
    return [
        near(branch, facts["branch"], 1, 0.05),
        below(change, facts["change"], 0.01),
        near(stream, facts["stream"], 1, 0.05),
        check(
            f"With γ_last = {SMALL:g} the skip path dominates every block, and with {LARGE:g} not every one.",
            max(small) < 1 < min(large),
            largest_share_small=max(small),
            least_largest_share_large=min(large),
        ),
    ]


@artefact("gamma/equation-6", basis="measurement", checks=_accumulation_checks)
def full_accumulation(context: Context, *, model: str, features: int, examples: int, draws: int) -> Evidence:
    """Var f = γ_last² whatever else is in the branch, and Var x_l = Var x_s + Σ γ_last² (equations 1 to 6)."""
    batch = training_batch(context, f"gaussian(image_shape=({features},), train={examples})", examples)
    tables, again, dominated = [], [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        _rising(network, found)
        tables.append(measured_moments(network, batch, found, draw))
        _disturb_inside(network, found)
        again.append(measured_moments(network, batch, found, draw))
        dominated.append(_domination(network, batch, found, draw))
    table, disturbed = pd.concat(tables, ignore_index=True), pd.concat(again, ignore_index=True)
    dominance = pd.concat(dominated, ignore_index=True)
    rows = _rows_of_accumulation(table, dominance)
    shares = dominance.groupby("gamma_last")["measured"].agg(tuple)
    facts = {
        "branch": mean_ratio(rows, "Var[f_l]"),
        "stream": mean_ratio(rows, "Var[x_l]"),
        "change": largest_change(disturbed["branch_variance"], table["branch_variance"]),
        "small": shares[SMALL],
        "large": shares[LARGE],
    }
    return analysis(
        context,
        batch,
        rows,
        facts,
        tables,
        network=model,
        gamma_last=f"rising from {FIRST:g} in the first block to {LAST:g} in the last",
    )


def _rising(network: nn.Module, found: ResidualMap) -> None:
    last = gammas_of(network, found, "last")
    step = (LAST - FIRST) / max(1, len(last) - 1)
    set_gammas(last, [FIRST + step * index for index in range(len(last))])


def _disturb_inside(network: nn.Module, found: ResidualMap) -> None:
    """Enlarge the weights before the last norm of every branch, and the γ within branches."""
    before = []
    for block in found.blocks:
        kinds = [layer.kind for layer in block.branch_layers]
        last_norm = len(kinds) - 1 - kinds[::-1].index("norm")
        weights = [layer for layer in block.branch_layers[:last_norm] if layer.kind == "weight"]
        before += [network.get_parameter(f"{layer.path}.weight") for layer in weights]
    multiply(before, 10.0)
    multiply(gammas_of(network, found, "other"), 3.0)


def _domination(network: nn.Module, batch: MeasuredBatch, found: ResidualMap, draw: int) -> pd.DataFrame:
    """The largest share of a branch in its sum, with every γ_last small and large."""
    last, rows = gammas_of(network, found, "last"), []
    for value in (SMALL, LARGE):
        set_gammas(last, [value] * len(last))
        table = measured_moments(network, batch, found, draw)
        share = table["branch_variance"] / table["skip_variance"]
        worst = int(share.to_numpy().argmax())
        start = float(table["skip_variance"].iloc[0])
        by_formula = value**2 / (start + worst * value**2)
        rows.append((table["name"].iloc[worst], draw, value, float(share.iloc[worst]), by_formula))
    dominance = pd.DataFrame(rows, columns=["name", "draw", "gamma_last", "share", "by_formula"])
    return beside_formula("dominance_condition", dominance, dominance["share"], dominance["by_formula"], "gamma_last")


def _rows_of_accumulation(table: pd.DataFrame, dominance: pd.DataFrame) -> pd.DataFrame:
    squares, skip = table["gamma_last"] ** 2, table["skip_variance"]
    starts = table.groupby("draw")["skip_variance"].transform("first")
    before = squares.groupby(table["draw"]).cumsum() - squares
    parts = [
        beside_formula("Var[f_l]", table, table["branch_variance"], squares, "gamma_last"),
        beside_formula("Var[x_{l+1}]", table, table["stream_variance"], skip + squares, "gamma_last"),
        beside_formula("Var[x_l]", table, skip, starts + before, "gamma_last"),
    ]
    return pd.concat([*parts, dominance], ignore_index=True)


# Second moments that a stage is started with: far above γ_last², and below it.
STARTS = (4.0, 0.25)
CONSTANT = 1.0
# Equations 7 to 11 over draws: the claim of each quantity, its value and tolerance. The mean of what a block reads is
# left out as the text leaves it out.
_CLAIMS = {
    "step": (
        "After a block there is half of what came in and of γ_last² (equation 10), within 5 % in the mean.",
        1,
        0.05,
    ),
    "recursion": ("After several there is what equation 11 says, within 5 % in the mean.", 1, 0.05),
    "left_after_two": ("After two blocks a quarter of a larger start is left, between 20 and 30 %.", 0.25, 0.05),
    "limit": ("For constant γ_last the second moment comes to γ_last², within 10 %.", 1, 0.1),
}


def _half_checks(facts: Mapping[str, Estimate]) -> list[Check]:
    branch = below("The branch's second moment is γ_last² within 1 %.", facts["branch"].mean, 0.01)
    return [branch, *(near(claim[0], facts[name], *claim[1:]) for name, claim in _CLAIMS.items())]


@artefact("gamma/equation-11", basis="measurement", checks=_half_checks)
def half_accumulation(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """q_{l+1} = (q_l + γ_last²) / 2 after a block of the original ResNet (equations 7 to 11)."""
    batch = noise_batch(context, side, examples)
    tables, chains = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        tables.append(measured_moments(network, batch, found, draw))
        stages = _identity_blocks(network, found, batch)
        drawn = pd.concat([_centred(network, found, stages, start) for start in STARTS])
        last = gammas_of(network, found, "last")
        set_gammas(last, [CONSTANT] * len(last))
        constant = _centred(network, found, stages, STARTS[1]).assign(constant=True)
        chains.append(pd.concat([drawn.assign(constant=False), constant]).assign(draw=draw))
    chain, table = pd.concat(chains, ignore_index=True), pd.concat(tables, ignore_index=True)
    return analysis(
        context,
        batch,
        _rows_of_half(chain, table),
        _half_facts(chain, table),
        tables,
        network=model,
        stream=f"centred noise of second moment {' or '.join(map(str, STARTS))} at the start of a stage",
    )


def _identity_blocks(
    network: nn.Module, found: ResidualMap, batch: MeasuredBatch
) -> list[list[tuple[ResidualBlock, torch.Size]]]:
    """By stage the blocks with an identity skip path, and the shape that each reads."""
    calls, _ = observed(network, [network.get_submodule(block.name) for block in found.blocks], batch.inputs)
    stages: list[list[tuple[ResidualBlock, torch.Size]]] = [[]]
    for block, (inputs, _) in zip(found.blocks, calls, strict=True):
        if block.identity_skip:
            stages[-1].append((block, inputs[0].shape))
        else:
            stages.append([])
    return [stage for stage in stages if stage]


@torch.no_grad()
def _centred(
    network: nn.Module,
    found: ResidualMap,
    stages: Sequence[Sequence[tuple[ResidualBlock, torch.Size]]],
    start: float,
) -> pd.DataFrame:
    """The blocks of each stage in a row, each reading centred noise of the second moment that the last one gave."""
    gammas = dict(zip((block.name for block in found.blocks), gammas_of(network, found, "last"), strict=True))
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


def _half_facts(chains: pd.DataFrame, table: pd.DataFrame) -> dict[str, Estimate]:
    drawn, constant = chains[~chains["constant"]], chains[chains["constant"]]

    def ratio(rows: pd.DataFrame, by: str) -> Estimate:
        return over_draws((rows["measured"] / rows[by]).groupby(rows["draw"]).mean())

    second = drawn[drawn["place"] == 2].pivot_table(index=["draw", "name"], columns="start", values="measured")
    left = (second[STARTS[0]] - second[STARTS[1]]) / (STARTS[0] - STARTS[1])
    end = constant[constant["place"] == constant["place"].max()]
    return {
        "branch": Estimate(largest_change(table["branch_second_moment"], table["gamma_last"] ** 2)),
        "step": ratio(drawn, "by_step"),
        "recursion": ratio(drawn, "by_recursion"),
        "left_after_two": over_draws(left.groupby("draw").mean()),
        "limit": over_draws(end.groupby("draw")["measured"].mean() / CONSTANT**2),
    }


def _rows_of_half(chains: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Branches, one block and a row of them with the mean left out; and one block of the network as it is."""
    inside, drawn = table[table["equation"] == 11], chains[~chains["constant"]]
    squares = inside["gamma_last"] ** 2
    with_mean = (inside["skip_second_moment"] + squares) / 2
    parts = [
        beside_formula("Var[f_l]", inside, inside["branch_second_moment"], squares),
        beside_formula("Var[x_{l+1}]", drawn, drawn["measured"], drawn["by_step"], "start"),
        beside_formula("Var[x_l]", drawn, drawn["measured"], drawn["by_recursion"], "start"),
        beside_formula("Var[x_{l+1}] with the mean", inside, inside["stream_second_moment"], with_mean),
    ]
    return pd.concat(parts, ignore_index=True)
