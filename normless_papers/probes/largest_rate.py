"""The largest learning rate that a network tolerates without diverging (Bjorck et al., section 3.4, appendix J)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import inf, sqrt

import pandas as pd
import torch.nn.functional as F
from torch import nn

from normless.divergence import LOSS_LIMIT, has_diverged
from normless.probes import Batch, Loss, descend
from normless_papers.probes.divergence import MakeOptimizer, momentum_sgd, trained_copy

_FACTOR = 4.0


@dataclass(frozen=True)
class WarmStart:
    """Steps at a small rate before the search, as by the rule "one epoch at 0.0001" (appendix J)."""

    rate: float
    steps: int


@dataclass(frozen=True)
class StableRate:
    """The end of a search.

    Attributes:
        largest: the largest rate tried that did not diverge; 0 if every one did.
        smallest_diverging: the smallest rate tried above it; infinite if none diverged, 0 if the loss exceeded the
            limit before the first step.
        trials: a row per run in order: `rate`, `diverged`, `steps`, `first_loss`, `last_loss`.
    """

    largest: float
    smallest_diverging: float
    trials: pd.DataFrame


def largest_stable_rate(
    model: nn.Module,
    batches: Sequence[Batch],
    optimizer: MakeOptimizer = momentum_sgd,
    *,
    steps: int | None = None,
    start: float = 0.1,
    lowest: float = 1e-8,
    highest: float = 1e4,
    resolution: float = 2.0,
    warm_start: WarmStart | None = None,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> StableRate:
    """Search the largest rate at which a copy of the network trains for some steps without diverging.

    Rates go up or down from `start` by factors of 4 until one diverges and one does not, and the interval is then
    bisected on the logarithmic scale. Every run starts from the same weights and random state, takes the same
    batches, and ends when its loss diverges. A larger rate is assumed to diverge if a smaller one does.

    Args:
        model: a network; neither it nor torch's random state is changed.
        batches: inputs and targets, in a cycle.
        optimizer: from a network and a rate to an optimizer of its parameters.
        steps: of each run; one for each batch if None.
        start, lowest, highest: the first, the lowest and the highest rate tried.
        resolution: the largest final ratio of the smallest diverging rate to the largest stable rate.
        warm_start: training before the search, on the first batches.
        loss: (logits, targets) to a scalar.
        limit: the loss above which a run has diverged, in nats.

    Raises:
        ValueError: there are no batches or steps, the rates are not lowest ≤ start ≤ highest, the resolution is not
            above 1, the warm start diverged, or the network returns no logits.
    """
    count = len(batches) if steps is None else steps
    if not batches or count < 1:
        raise ValueError(f"The search trains on batches, got {len(batches)} batches and {count} steps.")
    if not 0 < lowest <= start <= highest or resolution <= 1:
        raise ValueError(
            f"Expected 0 < lowest ≤ start ≤ highest and a resolution above 1, got lowest={lowest}, start={start}, "
            f"highest={highest} and resolution={resolution}."
        )
    runs = _Runs(batches, optimizer, loss, limit)
    search = _Search(runs.warmed(model, warm_start), runs, count)
    stable, diverging = _bracket(search, start, lowest, highest)
    while stable > 0 and diverging < inf and diverging > resolution * stable * (1 + 1e-9):
        middle = sqrt(stable * diverging)
        stable, diverging = (stable, middle) if search.diverges(middle) else (middle, diverging)
    return StableRate(stable, diverging, pd.DataFrame(search.trials))


@dataclass(frozen=True)
class _Runs:
    """Training runs of copies on the same batches."""

    batches: Sequence[Batch]
    optimizer: MakeOptimizer
    loss: Loss
    limit: float

    def train(self, model: nn.Module, rate: float, steps: int) -> tuple[list[float], nn.Module]:
        """Train a copy; its losses, and itself."""
        with trained_copy(model) as network:
            taken = islice(cycle(self.batches), steps)
            losses = list(descend(network, taken, self.optimizer(network, rate), loss=self.loss, limit=self.limit))
        return losses, network

    def warmed(self, model: nn.Module, warm_start: WarmStart | None) -> nn.Module:
        """The network itself, or a copy that was trained at a small rate."""
        if warm_start is None:
            return model
        losses, network = self.train(model, warm_start.rate, warm_start.steps)
        if losses and has_diverged(losses[-1], self.limit):
            raise ValueError(
                f"The warm start diverged at step {len(losses)} with a rate of {warm_start.rate:g}; "
                "start with a smaller one."
            )
        network.zero_grad(set_to_none=True)
        return network


@dataclass
class _Search:
    """Tries rates on one network."""

    model: nn.Module
    runs: _Runs
    steps: int
    trials: list[dict[str, float | bool]] = field(default_factory=list)

    def diverges(self, rate: float) -> bool:
        """Train at a rate."""
        losses, _ = self.runs.train(self.model, rate, self.steps)
        diverged = has_diverged(losses[-1], self.runs.limit)
        trial = {"steps": len(losses) - diverged, "first_loss": losses[0], "last_loss": losses[-1]}
        self.trials.append({"rate": rate, "diverged": diverged} | trial)
        return diverged


def _bracket(search: _Search, start: float, lowest: float, highest: float) -> tuple[float, float]:
    """The largest stable and the smallest diverging of rates that are a factor apart."""
    rate = start
    if not search.diverges(rate):
        while rate < highest:
            above = min(rate * _FACTOR, highest)
            if search.diverges(above):
                return rate, above
            rate = above
        return rate, inf
    if search.trials[0]["steps"] == 0:
        return 0.0, 0.0
    while rate > lowest:
        below = max(rate / _FACTOR, lowest)
        if not search.diverges(below):
            return below, rate
        rate = below
    return 0.0, rate
