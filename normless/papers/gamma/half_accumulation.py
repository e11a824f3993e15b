"""Case 2: half variance accumulation behind the blocks of the original ResNet."""

from __future__ import annotations

import pandas as pd
import torch
from torch.nn import functional as F

from normless.papers.artefact import Context, artefact
from normless.papers.batches import training_batch
from normless.papers.draws import seeded
from normless.papers.estimates import over_draws, within
from normless.papers.evidence import Evidence
from normless.papers.gamma.networks import (
    analysed_network,
    averaged,
    beside_formula,
    gammas_of,
    measured_moments,
    multiply,
    set_gammas,
    setup_of,
)
from normless.papers.verdict import Check, check
from normless.report.probes.stream_variance import stream_second_moment


@artefact("gamma/equation-11", basis="measurement")
def half_accumulation(context: Context, *, model: str, side: int, examples: int, draws: int) -> Evidence:
    """q_{l+1} = (q_l + γ_last²) / 2 behind a block of the original ResNet (equations 7 to 11)."""
    batch = training_batch(context, f"gaussian(image_shape=(3, {side}, {side}), train={examples})", examples)
    tables, surpluses = [], []
    for draw in range(draws):
        with seeded(context.seed + draw):
            network, found = analysed_network(model, batch)
        set_gammas(gammas_of(network, found, "last"), [1.0] * len(gammas_of(network, found, "last")))
        tables.append(measured_moments(network, batch, found, draw))
        multiply([*gammas_of(network, found, "stem"), *gammas_of(network, found, "down")], 2.0)
        surpluses.append(measured_moments(network, batch, found, draw))
    table = pd.concat(tables, ignore_index=True)
    halving = _halving_rows(table)
    forgetting = _forgetting_rows(table, pd.concat(surpluses, ignore_index=True))
    with seeded(context.seed):
        centred = _centred_ratio()
    measured = pd.concat([halving, forgetting], ignore_index=True)
    return Evidence(
        measured=averaged(measured),
        checks=_half_checks(halving, forgetting, centred),
        setup=setup_of(context, model, batch, draws) | {"gamma_last": 1.0},
        on=("quantity",),
        draw=lambda: stream_second_moment(tables[0]),
        remarks=(
            "Var of the paper is the second moment behind the ReLU. The stream of the original ResNet is not "
            "negative: nearly all of it passes the next ReLU, and the term E[x_l] that the paper ignores is most of "
            "it. The last check is the derivation itself, on a sum that is centred. The dashed line of the figure is "
            "what the weights predict with the mean counted.",
        ),
    )


def _halving_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Branches, one step of the recursion, and the whole of it from a stage's start, of blocks with identity skip."""
    inside = _inside_stages(table)
    step = (inside["skip_second_moment"] + inside["gamma_last"] ** 2) / 2
    first = inside.groupby(["draw", "stage"])["skip_second_moment"].transform("first")
    # With γ_last = 1: 2^-k q_s + Σ 2^-j = 1 + 2^-k (q_s - 1).
    whole = 1 + (first - 1) * 0.5 ** inside["place"]
    return pd.concat(
        [
            beside_formula(
                "Var[f_l]", inside, inside["branch_second_moment"], inside["gamma_last"] ** 2, "gamma_last"
            ),
            beside_formula("Var[x_{l+1}]", inside, inside["stream_second_moment"], step, "gamma_last"),
            beside_formula("Var[x_l]", inside, inside["stream_second_moment"], whole, "gamma_last"),
        ],
        ignore_index=True,
    )


def _forgetting_rows(table: pd.DataFrame, surplus: pd.DataFrame) -> pd.DataFrame:
    """How much of a larger start is left behind the blocks of every stage, as a share of what was added."""
    first, more = _inside_stages(table), _inside_stages(surplus)
    added = more["skip_second_moment"] - first["skip_second_moment"]
    at_start = added.groupby([first["draw"], first["stage"]]).transform("first")
    left = (more["stream_second_moment"] - first["stream_second_moment"]) / at_start
    return beside_formula("share of the start left", first, left, 0.5 ** first["place"], "place", "gamma_last")


def _inside_stages(table: pd.DataFrame) -> pd.DataFrame:
    """The blocks with an identity skip path: their `stage`, and their `place` in it from 1."""
    counted = table.assign(stage=table["equation"].eq(15).cumsum())
    inside = counted[counted["equation"] == 11]
    return inside.assign(place=inside.groupby(["draw", "stage"]).cumcount() + 1)


def _centred_ratio(size: int = 1_000_000) -> float:
    """E[ReLU(x + f)²] / ((Var x + Var f)/2) of centred Gaussian x and f, of variances 4 and 1."""
    total = 2 * torch.randn(size) + torch.randn(size)
    return float(F.relu(total).square().mean()) / 2.5


def _half_checks(halving: pd.DataFrame, forgetting: pd.DataFrame, centred: float) -> tuple[Check, ...]:
    steps = halving[halving["quantity"] == "Var[x_{l+1}]"]
    branches = halving[halving["quantity"] == "Var[f_l]"]["ratio"]
    # Where the recursion has nearly reached its limit γ_last² = 1, from the third block of a stage on.
    whole = halving[halving["quantity"] == "Var[x_l]"]
    settled = whole[(whole["by_formula"] - 1).abs() < 0.1]
    behind_two = forgetting[forgetting["place"] == 2].groupby("draw")["measured"].mean()
    return (
        check(
            "The branch's second moment is γ_last² within 1 %.",
            bool((branches - 1).abs().max() < 0.01),
            largest_deviation=float((branches - 1).abs().max()),
        ),
        within(
            "Behind a block there is half of what came in and of γ_last², within 10 % in the mean.",
            over_draws(steps.groupby("draw")["ratio"].mean()),
            0.9,
            1.1,
        ),
        within(
            "Behind two blocks a quarter of what was added at the start is left, between 15 and 35 %.",
            over_draws(behind_two),
            0.15,
            0.35,
        ),
        within(
            "For constant γ_last the second moment comes to γ_last², within 10 %.",
            over_draws(settled.groupby("draw")["measured"].mean()),
            0.9,
            1.1,
        ),
        check(
            "The ReLU halves the second moment of a centred sum, within 1 %.", abs(centred - 1) < 0.01, ratio=centred
        ),
    )
