"""The longest useful steps: the loss along the gradient (figure 24), the largest learning rate (appendix J)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.plots import Plot, new_panels
from normless.probes import descend
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Estimate
from normless_papers.probes import find_divergence, largest_stable_rate, loss_along, momentum_sgd, steepest_descent
from normless_papers.stated_claims import Tests, asked_at_scale, exceeds, in_all, lies_within
from normless_papers.understanding_bn.diverging_update import LOSSES
from normless_papers.understanding_bn.initializations import INKS, Draw, Initializations, Measured, decades
from normless_papers.understanding_bn.protocol import OPTIMIZER

# The rates of the training up to the fifth minibatch.
TRAINING_RATES = {False: 1e-4, True: 0.1}
_SHORTEST, _LONGEST = 1e-6, 16.0
_SURVIVED, _DIVERGING, _UNNORMALIZED = 3.0, 10.0, 1e-4


def _figure_24(facts: Measured) -> Tests:
    without, with_norm = (facts.pivoted("minibatch", ["step"], batch_norm=kind)["step"] for kind in (False, True))
    return {
        f"Minibatch {minibatch}: the longest step that lowers the loss is more than ten times as long with "
        "batch norm (log₁₀ of the ratio).": exceeds(decades(with_norm[minibatch] / without[minibatch]), 1.0)
        for minibatch in (1, 5)
    }


@artefact("understanding-bn/figure-24", basis="measurement", checks=_figure_24)
def loss_along_gradient(context: Context, *, data: str, batch_size: int, draws: int, factor: float) -> Evidence:
    """Figure 24: far larger steps decrease a minibatch's loss with batch norm, at the first and the fifth."""
    setting = Initializations(context, data, batch_size, draws, minibatches=5)
    count = int(np.log(_LONGEST / _SHORTEST) / np.log(factor)) + 1
    steps = [_SHORTEST * factor**power for power in range(count)]
    first: list[pd.DataFrame] = []

    def longest(draw: Draw) -> pd.DataFrame:
        losses = _losses(draw, steps)
        if draw.number == 0:
            first.append(losses.assign(scheme=INKS[draw.batch_norm]))
        by_minibatch = losses.groupby("minibatch")[["point", "loss"]]
        return by_minibatch.apply(_longest_useful_step).rename("step").reset_index()

    return setting.evidence(
        longest,
        "Steps are along the gradient of the minibatch itself, in units of the learning rate of plain gradient "
        f"descent. Where no step tried lowers the loss the longest is counted as {_SHORTEST:g}. Losses above a "
        "thousand times that at the start are left out of the figure, which shows the first draw.",
        quantities=_longest_steps,
        draw=lambda: _landscapes(pd.concat(first)),
        steps=f"from {steps[0]:g} to {steps[-1]:g} by factors of {factor:g}",
        optimizer=OPTIMIZER,
    )


def _longest_steps(facts: Measured) -> dict[str, Estimate | float]:
    """The rates of the training, and the longest steps."""
    rates = {"lr_unnormalized": TRAINING_RATES[False], "lr_batch_norm": TRAINING_RATES[True]}
    return rates | {
        f"log10 of the longest step that lowers the loss, minibatch {minibatch}, {name} batch norm": decades(
            rows[rows["minibatch"] == minibatch]["step"]
        )
        for minibatch in (1, 5)
        for name, rows in zip(("without", "with"), facts.both, strict=True)
    }


def _losses(draw: Draw, steps: Sequence[float]) -> pd.DataFrame:
    """The losses of the first and the fifth minibatch of a training, along their gradients."""
    optimizer = momentum_sgd(draw.model, TRAINING_RATES[draw.batch_norm])
    tables = [_along(draw.model.train(), draw.batches[0], steps).assign(minibatch=1)]
    for _ in descend(draw.model, draw.batches[:4], optimizer):
        pass
    tables.append(_along(draw.model, draw.batches[4], steps).assign(minibatch=5))
    return pd.concat(tables)


def _along(model: nn.Module, batch: tuple[Tensor, Tensor], steps: Sequence[float]) -> pd.DataFrame:
    return loss_along(model, *batch, steepest_descent(model, *batch), [0.0, *steps])


def _longest_useful_step(rows: pd.DataFrame) -> float:
    """The longest step that lowers the loss, interpolated between points in the logarithms of both."""
    losses = rows.sort_values("point").set_index("point")["loss"]
    start, tried = float(losses.iloc[0]), losses.iloc[1:]
    lower = tried.index[tried < start]
    if not len(lower):
        return _SHORTEST
    longest = float(lower.max())
    beyond = tried[tried.index > longest]
    if beyond.empty or not np.isfinite(beyond.iloc[0]) or tried[longest] <= 0:
        return longest
    below, above = float(np.log(start / tried[longest])), float(np.log(beyond.iloc[0] / tried[longest]))
    share = below / above if above > 0 else 0.0
    return float(longest * (float(beyond.index[0]) / longest) ** share)


def _landscapes(first: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    for axes, minibatch in zip(panels, (1, 5), strict=True):
        rows = first[first["minibatch"] == minibatch]
        start = rows[rows["point"] == 0].set_index("scheme")["loss"]
        shown = rows[(rows["loss"] < 1e3 * rows["scheme"].map(start)) & (rows["point"] > 0)]
        LOSSES(shown, axes, title=f"Minibatch {minibatch}", x_label="step along -∇L", log="xy?")
    return panels[0]


def _ratio(facts: Measured) -> Estimate:
    """log₁₀ of the ratio of the largest rates."""
    without, with_norm = facts.both
    return decades(with_norm["largest"] / without["largest"])


def _maximal_learning_rate(facts: Measured) -> Tests:
    without, with_norm = facts.both
    published = {
        f"With batch norm the rate {_SURVIVED:g} does not diverge, in every draw.": in_all(with_norm["first_stable"]),
        f"With batch norm the rate {_DIVERGING:g} diverges, in every draw.": in_all(with_norm["ten_diverged"]),
        f"Without it the rate {_UNNORMALIZED:g} does not diverge, in every draw.": in_all(without["first_stable"]),
        "The largest rate is roughly four orders of magnitude larger with batch norm: three to five (log₁₀ of "
        "the ratio).": lies_within(_ratio(facts), 3.0, 5.0),
    }
    return {
        **{claim: asked_at_scale(test, facts.reduction) for claim, test in published.items()},
        "The largest rate is more than a hundred times as large with batch norm (log₁₀ of the ratio).": exceeds(
            _ratio(facts), 2.0
        ),
    }


@artefact("understanding-bn/maximal-learning-rate", basis="measurement", checks=_maximal_learning_rate)
def maximal_learning_rate(context: Context, *, data: str, batch_size: int, draws: int, minibatches: int) -> Evidence:
    """Appendix J: with batch norm the rate 3 does not diverge and 10 does, four orders above the unnormalized one."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    trials: list[pd.DataFrame] = []

    def search(draw: Draw) -> pd.DataFrame:
        row, tried = _searched(draw)
        trials.append(tried.assign(scheme=INKS[draw.batch_norm]))
        return pd.DataFrame([row])

    return setting.evidence(
        search,
        "Rates are searched by factors of 4, then 2, over the minibatches of one short training, and are "
        "geometric means over draws; the resolution of the published ones is unknown.",
        quantities=_stable_rates,
        draw=lambda: TRIALS(pd.concat(trials)),
        minibatches=minibatches,
        resolution="a factor of 2",
        optimizer=OPTIMIZER,
    )


def _stable_rates(facts: Measured) -> dict[str, Estimate | float]:
    without, with_norm = facts.both
    return {
        "does_not_diverge": _geometric(with_norm["largest"]),
        "diverges": _geometric(with_norm["smallest_diverging"]),
        "does not diverge, without batch norm": _geometric(without["largest"]),
        "diverges, without batch norm": _geometric(without["smallest_diverging"]),
        "log10 of the ratio of the rates that do not diverge": _ratio(facts),
    }


def _searched(draw: Draw) -> tuple[dict[str, Any], pd.DataFrame]:
    """The largest rate of one network, and a row per rate tried."""
    start = _SURVIVED if draw.batch_norm else _UNNORMALIZED
    search = largest_stable_rate(draw.model, draw.batches, start=start)
    tried = search.trials[["rate", "diverged"]]
    row: dict[str, Any] = {
        "largest": search.largest,
        "smallest_diverging": search.smallest_diverging,
        "first_stable": not bool(search.trials.iloc[0]["diverged"]),
    }
    if draw.batch_norm:
        row["ten_diverged"] = find_divergence(draw.model, draw.batches, _DIVERGING).diverged
        tried = pd.concat([tried, pd.DataFrame([{"rate": _DIVERGING, "diverged": row["ten_diverged"]}])])
    return row, tried


def _geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values.to_numpy(float)).mean()))


def _stable_ranges(trials: pd.DataFrame) -> pd.DataFrame:
    """A bar from the left end to the largest rate that did not diverge."""
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
