"""Bjorck et al., highest learning rates: of architectures (table 3, section 3.4), without divergence (appendix J)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from scipy.stats import gmean

from normless.nn import AlternatingBatchNorm2d
from normless.spec import parse_call
from normless_lab.plots import Ink, Plot, series_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Seeds
from normless_papers.claims import (
    UNKNOWN,
    Claim,
    Estimate,
    Tests,
    asked_at_scale,
    check,
    decided,
    exceeds,
    in_all,
    lies_within,
    quantity_table,
)
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement
from normless_papers.claims.declared import ClaimRow
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.pages.tables import spoken
from normless_papers.probes.divergence import find_divergence, largest_stable_rate
from normless_papers.understanding_bn.initializations import OPTIMIZER, Draw, Initializations, MeasuredDraws, decades
from normless_papers.understanding_bn.rate_search import SCHEMES, RateSearch

AXIS = "architecture"
# The scheme of each architecture.
ARCHITECTURES: Mapping[str, str] = {
    "resnet_32": "none",
    "resnet_56": "none",
    "unnormalized": "none",
    "unnormalized_warm_start": "none",
    "alternating_normalization": "alternating",
    "batch_norm": "batch norm",
}
SHALLOW, MIDDLE, UNNORMALIZED, WARM, ALTERNATING, NORMALIZED = ARCHITECTURES
_INKS: dict[str, Ink] = {spoken(name): series_ink(place) for place, name in enumerate(ARCHITECTURES)}


def _trained(context: Context, *, effort: Effort, names: Sequence[str]) -> TrainingSweeps:
    """Declare architectures at every rate of the effort, for the paper's first number of epochs."""
    axis = {name: {**effort.variants.get(name, {}), "scheme": SCHEMES[ARCHITECTURES[name]]} for name in names}
    if WARM in axis:
        axis[WARM] |= effort.variants["warm_start"]
    return effort.training(context, effort.sweep(context, "highest rates", {AXIS: axis}))


def _draw(search: RateSearch) -> Axes:
    return search.draw("Rates that architectures train at", _INKS, spoken)


@artefact(
    "understanding-bn/table-3",
    basis="training",
    trains=partial(_trained, names=tuple(ARCHITECTURES)),
)
def highest_rates(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = RateSearch(runs, AXIS)
    rows = []
    for name, own in search.runs.table.groupby(AXIS, sort=False):
        counts, model = own["outcome"].value_counts(), effort.variants.get(str(name), {}).get("model", effort.model)
        row = {AXIS: name, "lr": search.highest(str(name))}
        row |= {"layers": int(parse_call(model.partition(":")[2])[1]["depth"]), "lowest_tried": own["rate"].min()}
        rows.append(row | {"runs": len(own)} | {end: int(counts.get(end, 0)) for end in ("diverged", "chance")})
    return search.runs.evidence(
        pd.DataFrame(rows),
        lambda: _draw(search),
        facts=search,
        on=(AXIS,),
    )


def _warm_start(facts: tuple[RateSearch, float, Sequence[float]]) -> list[Claim]:
    """Check the runs, the prescribed rate of warm starts, and the training rates of their first epochs."""
    search, prescribed, first = facts
    numbers = {"smallest": min(first, default=math.nan), "largest": max(first, default=math.nan)}
    rows: list[ClaimRow] = [
        {"claim": "The highest rate of unnormalized warm start is 0.01.", "highest_is": [WARM, 0.01]},
        {
            "claim": "With a warm start the largest usable rate is larger than without",
            "highest_above": [WARM, UNNORMALIZED],
        },
        {"claim": "With batch norm it is larger still", "highest_above": [NORMALIZED, WARM]},
    ]
    claim = f"The first epochs of every warm start are trained at the rate {prescribed:g}."
    return [
        check(claim, set(first) == {prescribed} if len(first) else None, epochs=len(first), **numbers),
        *(own for row in rows for own in search.claimed(row)),
    ]


@artefact(
    "understanding-bn/warm-start",
    basis="training",
    checks=_warm_start,
    trains=partial(_trained, names=(UNNORMALIZED, WARM, NORMALIZED)),
)
def warm_start(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = RateSearch(runs, AXIS)
    warm, epochs = effort.variants["warm_start"], search.runs.epochs
    first: list[float] = []
    if len(epochs):
        warmed = (epochs[AXIS] == WARM) & (epochs["epoch"] <= warm["warm_start_epochs"])
        first = epochs[warmed]["epoch_rate"].tolist()
    return search.runs.evidence(
        quantity_table(
            {
                "warm_start_lr": max(first, default=math.nan),
                "warm_start_epochs": warm["warm_start_epochs"],
                "achievable_lr": search.highest(WARM),
                "achievable rate without a warm start": search.highest(UNNORMALIZED),
                "achievable rate with batch norm": search.highest(NORMALIZED),
            }
        ),
        lambda: _draw(search),
        facts=(search, warm["warm_start_rate"], first),
    )


@artefact(
    "understanding-bn/alternating-normalization",
    basis="training",
    trains=partial(_trained, names=(ALTERNATING, NORMALIZED)),
)
def alternating_normalization(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = RateSearch(runs, AXIS)
    highest = {"achievable_lr": ALTERNATING, "achievable rate with batch norm": NORMALIZED}
    return search.runs.evidence(
        quantity_table({quantity: search.highest(name) for quantity, name in highest.items()}),
        lambda: _draw(search),
        facts={"search": search, "alternation": _alternation(context)},
    )


def _alternation(context: Context) -> list[Agreement]:
    """Compare the layer on four batches with the formula, with the statistics of the first or third batch."""
    with seeded(context.seed):
        batches = [3 * torch.randn(8, 4, 5, 5, dtype=torch.float64) + place for place in range(4)]
    layer, agreements = AlternatingBatchNorm2d(4).double(), []
    for place, batch in enumerate(batches):
        source = batches[place - place % 2]
        mean = source.mean((0, 2, 3), keepdim=True)
        variance = (source - mean).square().mean((0, 2, 3), keepdim=True)
        expected = (batch - mean) / (variance + layer.eps).sqrt()
        whose = "its own statistics" if place % 2 == 0 else f"those of batch {place}"
        agreements.append(
            agreement(f"Batch {place + 1} is normalized with {whose}", layer(batch), expected, ROUNDING)
        )
    return agreements


_SURVIVED, _DIVERGING, _UNNORMALIZED = 3.0, 10.0, 1e-4


def _begun(facts: MeasuredDraws) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the draws without batch norm whose first loss is not above the limit, and all with it."""
    without, with_norm = facts.both
    return without[without["smallest_diverging"] > 0], with_norm


def _ratio(without: pd.DataFrame, with_norm: pd.DataFrame) -> Estimate:
    """Return log₁₀ of the ratio of the largest rates over draws; unknown without any."""
    ratios = (with_norm["largest"] / without["largest"]).dropna()
    return decades(ratios) if len(ratios) else UNKNOWN


def _maximal_learning_rate(facts: MeasuredDraws) -> Tests:
    without, with_norm = _begun(facts)
    ratio = _ratio(without, with_norm)
    published = {
        f"With batch norm the rate {_SURVIVED:g} does not diverge, in every draw.": in_all(with_norm["first_stable"]),
        f"With batch norm the rate {_DIVERGING:g} diverges, in every draw.": in_all(with_norm["ten_diverged"]),
        f"Without it the rate {_UNNORMALIZED:g} does not diverge, in every draw that begins below the limit.": (
            in_all(without["first_stable"]) if len(without) else decided(None)
        ),
        "The largest rate is roughly four orders of magnitude larger with batch norm: three to five (log₁₀ of "
        "the ratio).": lies_within(ratio, 3.0, 5.0),
    }
    return {
        **{claim: asked_at_scale(test, facts.reduction) for claim, test in published.items()},
        "The largest rate is more than a hundred times as large with batch norm (log₁₀ of the ratio).": exceeds(
            ratio, 2.0
        ),
    }


@artefact("understanding-bn/maximal-learning-rate", basis="measurement", checks=_maximal_learning_rate)
def maximal_learning_rate(
    context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int], minibatches: Seeds[int]
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws, minibatches)
    searched = cache(_searched)
    return setting.evidence(
        lambda draw: pd.DataFrame([searched(draw)[0]]),
        quantities=_stable_rates,
        draw=lambda: TRIALS(setting.measured(lambda draw: searched(draw)[1])),
        minibatches=minibatches,
        resolution="a factor of 2",
        optimizer=OPTIMIZER,
    )


def _stable_rates(facts: MeasuredDraws) -> dict[str, Estimate | float]:
    without, with_norm = _begun(facts)
    return {
        "does_not_diverge": gmean(with_norm["largest"]),
        "diverges": gmean(with_norm["smallest_diverging"]),
        "does not diverge, without batch norm": gmean(without["largest"]) if len(without) else math.nan,
        "diverges, without batch norm": gmean(without["smallest_diverging"]) if len(without) else math.nan,
        "log10 of the ratio of the rates that do not diverge": _ratio(without, with_norm),
        "share of draws without batch norm that diverge before the first step": 1 - len(without) / len(with_norm),
    }


def _searched(draw: Draw) -> tuple[dict[str, Any], pd.DataFrame]:
    """Search the largest rate of a network; return it and a row per rate tried."""
    start = _SURVIVED if draw.batch_norm else _UNNORMALIZED
    search = largest_stable_rate(draw.model, draw.batches, start=start)
    tried = search.trials[["rate", "diverged"]]
    row: dict[str, Any] = {"largest": search.largest, "smallest_diverging": search.smallest_diverging}
    row["first_stable"] = not bool(search.trials.iloc[0]["diverged"])
    if draw.batch_norm:
        row["ten_diverged"] = find_divergence(draw.model, draw.batches, _DIVERGING).diverged
        tried = pd.concat([tried, pd.DataFrame([{"rate": _DIVERGING, "diverged": row["ten_diverged"]}])])
    return row, tried


def _stable_ranges(trials: pd.DataFrame) -> pd.DataFrame:
    """Add bars from the left end to the largest rate that did not diverge."""
    stable = trials["rate"].where(~trials["diverged"].astype(bool))
    largest = trials["rate"] == stable.groupby(trials["scheme"]).transform("max")
    left = float(trials["rate"].min()) / 2
    return trials.assign(left=np.where(largest, left, np.nan), right=trials["rate"].where(largest))


TRIALS = Plot(
    "points",
    _stable_ranges,
    x="rate",
    y="scheme",
    hollow="diverged",
    error=("left", "right"),
    log="x",
    title="Learning rates tolerated",
    x_label="learning rate (hollow: diverged)",
)
