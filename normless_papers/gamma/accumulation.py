"""Case 1: γ_last decides what a branch of a pre-activation network adds to the stream."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from torch import nn

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
    multiply,
    set_gammas,
    setup_of,
)
from normless_papers.seeded_inputs import MeasuredBatch, training_batch

# γ_last of the first and the last block, where it rises from block to block.
FIRST, LAST = 0.3, 2.0
SMALL, LARGE = 0.5, 3.0


@dataclass(frozen=True)
class AccumulationFacts:
    """Equations 1 to 6 over draws.

    Attributes:
        branch: the branch's variance over γ_last², in the mean over the blocks.
        stream: the stream's variance over that at its start plus the sum of γ_last².
        change: the largest relative change of a branch's variance by what precedes its last norm.
        shares_small: in each draw the largest share of a branch in its sum, with small γ_last.
        shares_large: the same with large γ_last.
    """

    branch: Estimate
    stream: Estimate
    change: float
    shares_small: tuple[float, ...]
    shares_large: tuple[float, ...]


def _accumulation_checks(found: AccumulationFacts) -> list[Check]:
    return [
        within("The branch's variance is γ_last², within 5 % in the mean over the blocks.", found.branch, 0.95, 1.05),
        check(
            "Ten times larger first weights and three times larger other γ change no branch's variance by 1 %.",
            found.change < 0.01,
            largest_change=found.change,
        ),
        within(
            "The stream's variance is that at its start plus the sum of γ_last², within 5 % in the mean.",
            found.stream,
            0.95,
            1.05,
        ),
        check(
            f"With γ_last = {SMALL:g} the skip path dominates every block, and with {LARGE:g} not every one.",
            max(found.shares_small) < 1 < min(found.shares_large),
            largest_share_small=max(found.shares_small),
            least_largest_share_large=min(found.shares_large),
        ),
    ]


@artefact("gamma/equation-6", basis="measurement", checks=_accumulation_checks)
def full_accumulation(context: Context, *, model: str, features: int, examples: int, draws: int) -> Evidence:
    """Var f = γ_last² whatever else is in the branch, and Var x_l = Var x_s + Σ γ_last² (equations 1 to 6)."""
    batch = training_batch(context, f"gaussian(image_shape=({features},), train={examples})", examples)
    tables, again, dominated = [], [], []
    for draw, network, found in drawn_networks(context, model, batch, draws):
        _rising(network, found)
        table = measured_moments(network, batch, found, draw)
        tables.append(table)
        _disturb_inside(network, found)
        again.append(measured_moments(network, batch, found, draw))
        dominated.append(_domination(network, batch, found, draw))
    table, disturbed = pd.concat(tables, ignore_index=True), pd.concat(again, ignore_index=True)
    measured = _rows_of_accumulation(table, pd.concat(dominated, ignore_index=True))
    ratios = measured.groupby(["quantity", "draw"])["ratio"].mean()
    dominance = measured[measured["quantity"] == "dominance_condition"]

    def shares(gamma_last: float) -> tuple[float, ...]:
        return tuple(dominance[dominance["gamma_last"] == gamma_last]["measured"])

    change = float((disturbed["branch_variance"] / table["branch_variance"] - 1).abs().max())
    return Evidence(
        measured=averaged(measured),
        facts=AccumulationFacts(
            over_draws(ratios["Var[f_l]"]), over_draws(ratios["Var[x_l]"]), change, shares(SMALL), shares(LARGE)
        ),
        setup=setup_of(context, model, batch, draws)
        | {"gamma_last": f"rising from {FIRST:g} in the first block to {LAST:g} in the last"},
        on=("quantity",),
        draw=lambda: draw_stream(tables[0]),
        remarks=(
            "Weights mix channels, so that γ_i² of the paper is the mean over the channels that the last weights "
            "read. The condition of dominance is measured as the largest ratio of the branch's variance to that of "
            f"the skip path over the blocks, with γ_last = {SMALL:g} and {LARGE:g} everywhere; by_formula is γ_last² "
            "/ Var x_l.",
        ),
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
        rows.append(
            {
                "quantity": "dominance_condition",
                "block": table["name"].iloc[worst],
                "draw": draw,
                "gamma_last": value,
                "measured": float(share.iloc[worst]),
                "by_formula": value**2 / (start + worst * value**2),
            }
        )
    found_rows = pd.DataFrame(rows)
    return found_rows.assign(ratio=found_rows["measured"] / found_rows["by_formula"])


def _rows_of_accumulation(table: pd.DataFrame, dominated: pd.DataFrame) -> pd.DataFrame:
    squares = table["gamma_last"] ** 2
    starts = table.groupby("draw")["skip_variance"].transform("first")
    before = squares.groupby(table["draw"]).cumsum() - squares
    parts = [
        beside_formula("Var[f_l]", table, table["branch_variance"], squares, "gamma_last"),
        beside_formula(
            "Var[x_{l+1}]", table, table["stream_variance"], table["skip_variance"] + squares, "gamma_last"
        ),
        beside_formula("Var[x_l]", table, table["skip_variance"], starts + before, "gamma_last"),
    ]
    return pd.concat([*parts, dominated], ignore_index=True)
