"""Case 2: half variance accumulation over the blocks of the original ResNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn

from normless.residual import ResidualBlock, ResidualMap
from normless_papers.agreement import observed
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, over_draws, within
from normless_papers.gamma.analysed_networks import (
    averaged,
    beside_formula,
    draw_stream,
    drawn_networks,
    gammas_of,
    measured_moments,
    set_gammas,
    setup_of,
)
from normless_papers.seeded_inputs import MeasuredBatch, noise_batch

# Second moments that a stage is started with: far above γ_last², and below it.
STARTS = (4.0, 0.25)
CONSTANT = 1.0


@dataclass(frozen=True)
class HalfFacts:
    """Equations 7 to 11 over draws, the mean of what a block reads left out as the text leaves it out.

    Attributes:
        branch: the largest relative deviation of a branch's second moment from γ_last².
        step: after one block, over half of what came in and of γ_last².
        recursion: after any number of blocks, over equation 11.
        left_after_two: the share of a larger start that is left after two blocks.
        limit: after the longest row of blocks of constant γ_last, over γ_last².
    """

    branch: float
    step: Estimate
    recursion: Estimate
    left_after_two: Estimate
    limit: Estimate


def _half_checks(found: HalfFacts) -> list[Check]:
    return [
        check(
            "The branch's second moment is γ_last² within 1 %.", found.branch < 0.01, largest_deviation=found.branch
        ),
        within(
            "After a block there is half of what came in and of γ_last² (equation 10), within 5 % in the mean.",
            found.step,
            0.95,
            1.05,
        ),
        within("After several there is what equation 11 says, within 5 % in the mean.", found.recursion, 0.95, 1.05),
        within(
            "After two blocks a quarter of a larger start is left, between 20 and 30 %.",
            found.left_after_two,
            0.2,
            0.3,
        ),
        within("For constant γ_last the second moment comes to γ_last², within 10 %.", found.limit, 0.9, 1.1),
    ]


@artefact("gamma/equation-11", basis="measurement", checks=_half_checks)
def half_accumulation(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """q_{l+1} = (q_l + γ_last²) / 2 after a block of the original ResNet (equations 7 to 11)."""
    batch = noise_batch(context, side, examples)
    tables, rows = [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        tables.append(measured_moments(network, batch, found, draw))
        stages = _identity_blocks(network, found, batch)
        rows += [{**row, "draw": draw} for start in STARTS for row in _centred(network, found, stages, start)]
        last = gammas_of(network, found, "last")
        set_gammas(last, [CONSTANT] * len(last))
        rows += [{**row, "draw": draw, "constant": True} for row in _centred(network, found, stages, STARTS[1])]
    chains = pd.DataFrame(rows).fillna({"constant": False})
    table = pd.concat(tables, ignore_index=True)
    return Evidence(
        measured=averaged(_rows(chains, table)),
        facts=_facts(chains, table),
        setup=setup_of(context, model, batch, draws)
        | {"stream": f"centred noise of second moment {' or '.join(map(str, STARTS))} at the start of a stage"},
        on=("quantity",),
        draw=lambda: draw_stream(tables[0]),
        remarks=(
            "Var of the paper is the second moment after the ReLU, and its derivation ignores E[x_l]. Checks do the "
            "same: each block reads centred noise of the second moment that the block before it gave. In the network "
            "itself the stream is not negative: nearly all of it passes the next ReLU, and its mean is most of it. "
            "The rows with the mean say how far from half that is in random networks, and the dashed line of the "
            "figure what the weights predict with the mean counted; the paper shows the decrease in a pretrained "
            "network (gamma/figure-5).",
        ),
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
) -> list[dict[str, float | str]]:
    """The blocks of each stage in a row, each reading centred noise of the second moment that the last one gave."""
    gammas = dict(zip((block.name for block in found.blocks), gammas_of(network, found, "last"), strict=True))
    rows: list[dict[str, float | str]] = []
    for stage in stages:
        measured = expected = start
        for place, (block, shape) in enumerate(stage, 1):
            square = float(gammas[block.name].double().square().mean())
            came_in, expected = measured, (expected + square) / 2
            output = network.get_submodule(block.name)(came_in**0.5 * torch.randn(shape))
            measured = float(output.double().square().mean())
            rows.append(
                {"name": block.name, "place": place, "start": start, "gamma_last": square**0.5, "came_in": came_in,
                 "measured": measured, "by_step": (came_in + square) / 2, "by_recursion": expected}
            )  # fmt: skip
    return rows


def _facts(chains: pd.DataFrame, table: pd.DataFrame) -> HalfFacts:
    drawn, constant = chains[~chains["constant"].astype(bool)], chains[chains["constant"].astype(bool)]

    def ratio(rows: pd.DataFrame, by: str) -> Estimate:
        return over_draws((rows["measured"] / rows[by]).groupby(rows["draw"]).mean())

    second = drawn[drawn["place"] == 2].pivot_table(index=["draw", "name"], columns="start", values="measured")
    left = (second[STARTS[0]] - second[STARTS[1]]) / (STARTS[0] - STARTS[1])
    end = constant[constant["place"] == constant["place"].max()]
    branches = table["branch_second_moment"] / table["gamma_last"] ** 2
    return HalfFacts(
        branch=float((branches - 1).abs().max()),
        step=ratio(drawn, "by_step"),
        recursion=ratio(drawn, "by_recursion"),
        left_after_two=over_draws(left.groupby("draw").mean()),
        limit=over_draws(end.groupby("draw")["measured"].mean() / CONSTANT**2),
    )


def _rows(chains: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Branches, one block and a row of them with the mean left out; and one block of the network as it is."""
    inside = table[table["equation"] == 11]
    with_mean = (inside["skip_second_moment"] + inside["gamma_last"] ** 2) / 2
    drawn, kept = chains[~chains["constant"].astype(bool)], ("gamma_last", "start")
    parts = [
        beside_formula("Var[f_l]", inside, inside["branch_second_moment"], inside["gamma_last"] ** 2, "gamma_last"),
        beside_formula("Var[x_{l+1}]", drawn, drawn["measured"], drawn["by_step"], *kept),
        beside_formula("Var[x_l]", drawn, drawn["measured"], drawn["by_recursion"], *kept),
        beside_formula("Var[x_{l+1}] with the mean", inside, inside["stream_second_moment"], with_mean),
    ]
    # γ_last is drawn anew, so that rows over draws are those of a block and a start.
    return pd.concat(parts, ignore_index=True).drop(columns="gamma_last")
