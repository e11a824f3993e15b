"""How long steps may be: the loss along the gradient (figure 24), the largest learning rate (appendix J)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.plots import Plot, new_panels
from normless.probes import descend, find_divergence, momentum_sgd
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import (
    Check,
    Estimate,
    at_scale,
    decades_over_draws,
    in_every,
    larger,
    quantity_table,
    within,
)
from normless_papers.probes.landscape import loss_along, steepest_descent
from normless_papers.probes.largest_rate import largest_stable_rate
from normless_papers.understanding_bn.divergence import LOSSES
from normless_papers.understanding_bn.networks import INKS, Draw, Initializations
from normless_papers.understanding_bn.protocol import OPTIMIZER

# What the paper trains with up to the fifth minibatch.
TRAINING_RATES = {False: 1e-4, True: 0.1}
_SHORTEST, _LONGEST = 1e-6, 16.0
_SURVIVED, _DIVERGING, _UNNORMALIZED = 3.0, 10.0, 1e-4


@dataclass(frozen=True)
class LongestSteps:
    """The longest step that lowers the loss: a row per draw, columns (minibatch, with batch norm or not)."""

    table: pd.DataFrame

    def of(self, minibatch: int, batch_norm: bool) -> pd.Series:
        """Of every draw."""
        return self.table[(minibatch, batch_norm)]


def _figure_24(steps: LongestSteps) -> list[Check]:
    return [
        larger(
            f"Minibatch {minibatch}: the longest step that lowers the loss is more than ten times as long with "
            "batch norm (log₁₀ of the ratio).",
            decades_over_draws(steps.of(minibatch, True) / steps.of(minibatch, False)),
            Estimate(1.0),
        )
        for minibatch in (1, 5)
    ]


@artefact("understanding-bn/figure-24", basis="measurement", checks=_figure_24)
def loss_along_gradient(context: Context, *, data: str, batch_size: int, draws: int, factor: float) -> Evidence:
    """Figure 24: far larger steps decrease a minibatch's loss with batch norm, at the first and the fifth."""
    setting = Initializations(context, data, batch_size, draws, minibatches=5)
    count = int(np.log(_LONGEST / _SHORTEST) / np.log(factor)) + 1
    steps = [_SHORTEST * factor**power for power in range(count)]
    drawn = setting.measured(lambda draw: _losses(draw, steps))
    longest = LongestSteps(
        pd.DataFrame(
            [
                {"minibatch": minibatch, "batch_norm": kind, "draw": number, "step": _longest_useful_step(rows)}
                for (minibatch, kind, number), rows in drawn.groupby(["minibatch", "batch_norm", "draw"])
            ]
        ).pivot(index="draw", columns=["minibatch", "batch_norm"], values="step")
    )
    quantities: dict[str, Estimate | float] = {
        "lr_unnormalized": TRAINING_RATES[False],
        "lr_batch_norm": TRAINING_RATES[True],
    }
    for minibatch in (1, 5):
        for kind, name in ((False, "without"), (True, "with")):
            quantities[
                f"log10 of the longest step that lowers the loss, minibatch {minibatch}, {name} batch norm"
            ] = decades_over_draws(longest.of(minibatch, kind))
    first = drawn[drawn["draw"] == 0]
    return Evidence(
        quantity_table(quantities),
        facts=longest,
        setup=setting.setup(
            steps=f"from {steps[0]:g} to {steps[-1]:g} by factors of {factor:g}",
            optimizer=OPTIMIZER,
        ),
        on=("quantity",),
        draw=lambda: _landscapes(first),
        remarks=(
            "Steps are along the gradient of the minibatch itself, in units of the learning rate of plain gradient "
            f"descent. Where no step tried lowers the loss the longest is counted as {_SHORTEST:g}. Losses above a "
            "thousand times that at the start are left out of the figure, which shows the first draw.",
        ),
        reduction=setting.reduction,
    )


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
    """Up to where a step lowers the loss: beyond the longest that does, interpolated in the logarithms of both."""
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
        kept = rows[(rows["loss"] < 1e3 * rows["scheme"].map(start)) & (rows["point"] > 0)]
        LOSSES(kept, axes, title=f"Minibatch {minibatch}", x_label="step along -∇L", log="xy?")
    return panels[0]


@dataclass(frozen=True)
class StableRates:
    """What networks tolerated, draw by draw.

    Attributes:
        with_norm: of networks with batch norm `largest`, the largest rate tried that did not diverge,
            `smallest_diverging`, `first_stable`, whether the published rate did not diverge, and `ten_diverged`.
        without: the same of networks without.
        reduction: what is less than the paper's set-up; empty if nothing is.
    """

    with_norm: pd.DataFrame
    without: pd.DataFrame
    reduction: str

    @property
    def ratio(self) -> Estimate:
        """log₁₀ of the ratio of the largest rates."""
        return decades_over_draws(self.with_norm["largest"] / self.without["largest"])


def _maximal_learning_rate(rates: StableRates) -> list[Check]:
    published = [
        in_every(
            f"With batch norm the rate {_SURVIVED:g} does not diverge, in every draw.",
            rates.with_norm["first_stable"],
        ),
        in_every(
            f"With batch norm the rate {_DIVERGING:g} diverges, in every draw.", rates.with_norm["ten_diverged"]
        ),
        in_every(
            f"Without it the rate {_UNNORMALIZED:g} does not diverge, in every draw.", rates.without["first_stable"]
        ),
        within(
            "The largest rate is roughly four orders of magnitude larger with batch norm: three to five (log₁₀ of "
            "the ratio).",
            rates.ratio,
            3.0,
            5.0,
        ),
    ]
    return [
        *(at_scale(one, rates.reduction) for one in published),
        larger(
            "The largest rate is more than a hundred times as large with batch norm (log₁₀ of the ratio).",
            rates.ratio,
            Estimate(2.0),
        ),
    ]


@artefact("understanding-bn/maximal-learning-rate", basis="measurement", checks=_maximal_learning_rate)
def maximal_learning_rate(context: Context, *, data: str, batch_size: int, draws: int, minibatches: int) -> Evidence:
    """Appendix J: with batch norm the rate 3 does not diverge and 10 does, four orders above the unnormalized one."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    trials: list[pd.DataFrame] = []

    def search(draw: Draw) -> pd.DataFrame:
        row, made = _searched(draw)
        trials.append(made.assign(scheme=INKS[draw.batch_norm]))
        return pd.DataFrame([row])

    drawn = setting.measured(search)
    with_norm, without = (drawn[drawn["batch_norm"] == kind].set_index("draw") for kind in (True, False))
    rates = StableRates(with_norm, without, setting.reduction)
    return Evidence(
        quantity_table(
            {
                "does_not_diverge": _geometric(with_norm["largest"]),
                "diverges": _geometric(with_norm["smallest_diverging"]),
                "does not diverge, without batch norm": _geometric(without["largest"]),
                "diverges, without batch norm": _geometric(without["smallest_diverging"]),
                "log10 of the ratio of the rates that do not diverge": rates.ratio,
            }
        ),
        facts=rates,
        setup=setting.setup(minibatches=minibatches, resolution="a factor of 2", optimizer=OPTIMIZER),
        on=("quantity",),
        draw=lambda: TRIALS(pd.concat(trials)),
        remarks=(
            "Rates are searched by factors of 4, then 2, over the minibatches of one short training, and are "
            "geometric means over draws; of the published ones no resolution is known.",
        ),
        reduction=setting.reduction,
    )


def _searched(draw: Draw) -> tuple[dict[str, Any], pd.DataFrame]:
    """The largest rate of one network, and a row per rate that was tried."""
    start = _SURVIVED if draw.batch_norm else _UNNORMALIZED
    search = largest_stable_rate(draw.model, draw.batches, start=start)
    made = search.trials[["rate", "diverged"]]
    row: dict[str, Any] = {
        "largest": search.largest,
        "smallest_diverging": search.smallest_diverging,
        "first_stable": not bool(search.trials.iloc[0]["diverged"]),
    }
    if draw.batch_norm:
        row["ten_diverged"] = find_divergence(draw.model, draw.batches, _DIVERGING).diverged
        made = pd.concat([made, pd.DataFrame([{"rate": _DIVERGING, "diverged": row["ten_diverged"]}])])
    return row, made


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
