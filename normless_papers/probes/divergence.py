"""The update with which training diverges, the largest rate at which it does not, and the loss along an update.

The update with which a network's training diverges, and the largest rate at which it does not diverge.

Training has diverged when a minibatch loss is above 1000 nats or not finite; no run recovered from that (Bjorck et
al., section 3.4). `loss_along` and `moments_along` follow the last update before it (figures 5 and 6).

The loss, and moments of weight layers, at points along a direction in weight space.

If the loss at θ + t·d differs from its linear prediction L(θ) + t⟨∇L(θ), d⟩, the gradient does not describe a step of
that length (Bjorck et al., section 3.4 and appendix N, figures 5, 6 and 24).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf, sqrt
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.probes import LOSS_LIMIT, ChannelMoments, LabelledBatch, Loss, descend, has_diverged, observe
from normless.residual import ResidualMap
from normless.state import preserve_random_state
from normless_papers.probes.network_function import (
    as_function,
    gradients_by,
    map_of,
    require_known,
    trainable_parameters,
)

MakeOptimizer = Callable[[nn.Module, float], Optimizer]
"""From a network and a learning rate to the optimizer of its parameters."""

# The ratio of successive rates before bisection.
_FACTOR = 4.0


def momentum_sgd(model: nn.Module, rate: float) -> Optimizer:
    """Make the papers' optimizer: stochastic gradient descent with momentum 0.9 and weight decay 5e-4."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return SGD(trained, lr=rate, momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class DivergingUpdate:
    """The last update before the loss diverged.

    Attributes:
        step: its number from 1, also that of its batch.
        model: a copy of the network, with the weights before the update.
        inputs, targets: the batch.
        direction: the change of every parameter, by qualified name.
    """

    step: int
    model: nn.Module
    inputs: Any
    targets: Any
    direction: dict[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """The losses of a training, until it diverged or the batches ended.

    Attributes:
        losses: of each minibatch before its update; the last one is the diverged loss, if any.
        diverged: whether the training diverged.
        update: the last update; None if the training did not diverge, or diverged before the first update.
    """

    losses: tuple[float, ...]
    diverged: bool
    update: DivergingUpdate | None = None


def find_divergence(
    model: nn.Module,
    batches: Iterable[LabelledBatch],
    rate: float,
    optimizer: MakeOptimizer = momentum_sgd,
    *,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> Descent:
    """Train a copy of a network until a minibatch loss diverges, and return the responsible update.

    Args:
        model: a network; it and the random states are unchanged.
        batches: inputs and targets; the training ends with the last.
        rate, optimizer: the learning rate, and from a network and a rate to an optimizer of its parameters.
        loss, limit: (logits, targets) to a scalar, in nats, and the value above which the training has diverged.

    Raises:
        ValueError: the network returns no tensor that can serve as logits.
    """
    losses: list[float] = []
    latest: list[LabelledBatch] = []

    def remembered() -> Iterator[LabelledBatch]:
        for batch in batches:
            latest[:] = [*latest[-1:], batch]
            yield batch

    with trained_copy(model) as network:
        trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
        before, after = _copies(trained), _copies(trained)
        for value in descend(network, remembered(), optimizer(network, rate), loss=loss, limit=limit):
            losses.append(value)
            if not has_diverged(value, limit):
                before, after = after, _copies(trained)
    diverged = bool(losses) and has_diverged(losses[-1], limit)
    if not diverged or len(losses) == 1:
        return Descent(tuple(losses), diverged)
    network.load_state_dict(before, strict=False)
    network.zero_grad(set_to_none=True)
    direction = {name: after[name] - start for name, start in before.items()}
    return Descent(tuple(losses), diverged, DivergingUpdate(len(losses) - 1, network, *latest[0], direction))


@contextmanager
def trained_copy(model: nn.Module) -> Iterator[nn.Module]:
    """Copy a network in training mode for the body to train, and restore random states afterwards."""
    with preserve_random_state(model):
        yield deepcopy(model).train()


def _copies(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@dataclass(frozen=True)
class StableRate:
    """The end of a search.

    Attributes:
        largest: the largest rate tried that did not diverge; 0 if every one did.
        smallest_diverging: the smallest diverging rate tried; infinite if none diverged, 0 if the loss exceeded the
            limit before the first step.
        trials: a row per run in order: `rate`, `diverged`, `steps`, `first_loss`, `last_loss`.
    """

    largest: float
    smallest_diverging: float
    trials: pd.DataFrame


def largest_stable_rate(
    model: nn.Module,
    batches: Sequence[LabelledBatch],
    optimizer: MakeOptimizer = momentum_sgd,
    *,
    steps: int | None = None,
    start: float = 0.1,
    lowest: float = 1e-8,
    highest: float = 1e4,
    resolution: float = 2.0,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> StableRate:
    """Search for the largest rate at which a copy of the network trains for some steps without diverging.

    Rates go up or down from `start` by factors of 4 until one diverges and one does not, and the interval is then
    bisected on the logarithmic scale. Every run starts from the same weights and random state, takes the same
    batches, and ends when its loss diverges. A larger rate is assumed to diverge if a smaller one does.

    Args:
        model, optimizer, loss, limit: as for `find_divergence`.
        batches: inputs and targets, in a cycle.
        steps: number of steps of each run; one per batch if None.
        start, lowest, highest: the first, the lowest and the highest rate tried.
        resolution: the largest final ratio of the smallest diverging rate to the largest stable rate.

    Raises:
        ValueError: there are no batches or steps, the rates are not lowest ≤ start ≤ highest, the resolution is not
            above 1, or the network returns no logits.
    """
    count = len(batches) if steps is None else steps
    if not batches or count < 1:
        raise ValueError(f"The search trains on batches, got {len(batches)} batches and {count} steps.")
    if not 0 < lowest <= start <= highest or resolution <= 1:
        raise ValueError(
            f"Expected 0 < lowest ≤ start ≤ highest and a resolution above 1, got lowest={lowest}, start={start}, "
            f"highest={highest} and resolution={resolution}."
        )
    trials: list[dict[str, float | bool]] = []

    def diverges(rate: float) -> bool:
        taken = islice(cycle(batches), count)
        descent = find_divergence(model, taken, rate, optimizer, loss=loss, limit=limit)
        losses = descent.losses
        trial = {"steps": len(losses) - descent.diverged, "first_loss": losses[0], "last_loss": losses[-1]}
        trials.append({"rate": rate, "diverged": descent.diverged} | trial)
        return descent.diverged

    if not diverges(start):
        stable, diverging = _upwards(diverges, start, highest)
    elif trials[0]["steps"] == 0:
        stable = diverging = 0.0
    else:
        stable, diverging = _downwards(diverges, start, lowest)
    while stable > 0 and diverging < inf and diverging > resolution * stable * (1 + 1e-9):
        middle = sqrt(stable * diverging)
        stable, diverging = (stable, middle) if diverges(middle) else (middle, diverging)
    return StableRate(stable, diverging, pd.DataFrame(trials))


def _upwards(diverges: Callable[[float], bool], rate: float, highest: float) -> tuple[float, float]:
    """Raise a stable rate by factors; return the last stable and the first diverging rate, ∞ if none diverges."""
    while rate < highest:
        above = min(rate * _FACTOR, highest)
        if diverges(above):
            return rate, above
        rate = above
    return rate, inf


def _downwards(diverges: Callable[[float], bool], rate: float, lowest: float) -> tuple[float, float]:
    """Lower a diverging rate by factors; return the first stable rate, 0 if none is, and the last diverging rate."""
    while rate > lowest:
        below = max(rate / _FACTOR, lowest)
        if not diverges(below):
            return below, rate
        rate = below
    return 0.0, rate


Direction = Mapping[str, Tensor]
"""The changes of parameters, by qualified name, in a step of length 1."""


@contextmanager
def moved(model: nn.Module, direction: Direction, step: float) -> Iterator[None]:
    """Run the body with the weights at θ + step·direction, and restore them exactly afterwards."""
    known = dict(model.named_parameters())
    _require_fit(direction, known, "parameter")
    originals = {name: known[name].detach().clone() for name in direction}
    try:
        with torch.no_grad():
            for name, part in direction.items():
                known[name].add_(part, alpha=step)
        yield
    finally:
        with torch.no_grad():
            for name, original in originals.items():
                known[name].copy_(original)


def _require_fit(direction: Direction, parameters: Mapping[str, Tensor], what: str) -> None:
    """Raise a ValueError for a direction of another network."""
    require_known(list(direction), parameters, what)
    for name, part in direction.items():
        shapes = tuple(part.shape), tuple(parameters[name].shape)
        if shapes[0] != shapes[1]:
            raise ValueError(f"The direction of {name} has the shape {shapes[0]}, the parameter {shapes[1]}.")


def steepest_descent(
    model: nn.Module, inputs: Any, targets: Any, *, loss: Loss = F.cross_entropy, training: bool = True
) -> dict[str, Tensor]:
    """Return the direction -∇L of a batch, along which a step of length t is gradient descent at the rate t.

    The network's state is restored; arguments and errors are those of `normless.probes.observe`.
    """
    gradients, _ = _gradients(model, inputs, targets, loss, training)
    return {name: -gradient for name, gradient in gradients.items()}


def loss_along(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    direction: Direction,
    points: Sequence[float],
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """Measure the loss of a batch at θ + t·direction, and predict it linearly.

    Args:
        model, inputs, targets, loss, training: as for `normless.probes.observe`; the network's state is restored.
        direction: from `steepest_descent`, or the `direction` of a `DivergingUpdate`.
        points: the t: 0 before and 1 after an update; learning rates for `steepest_descent`.

    Returns:
        A row per point: `point`, `loss` and `predicted_loss`.

    Raises:
        ValueError: a direction of another network, no trainable parameter, or no logits.
    """
    gradients, start = _gradients(model, inputs, targets, loss, training)
    _require_fit(direction, gradients, "trainable parameter")
    slope = sum(float((gradients[name].double() * part.double()).sum()) for name, part in direction.items())
    rows = []
    with torch.no_grad(), as_function(model, training=training) as network:
        for point in points:
            with moved(model, direction, point):
                rows.append((point, float(loss(network({}, inputs), targets)), start + point * slope))
    return pd.DataFrame(rows, columns=["point", "loss", "predicted_loss"])


def moments_along(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    direction: Direction,
    points: Sequence[float],
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """Measure `ChannelMoments` of every weight layer at θ + t·direction (Bjorck et al., figure 6).

    Arguments are those of `normless.probes.observe` and `loss_along`. The columns of `ChannelMoments` follow `point`
    and `loss`, the batch's loss at that point, NaN without targets.
    """
    known, watcher = map_of(model, inputs, residual_map), ChannelMoments()
    tables = []
    for point in points:
        with moved(model, direction, point):
            value = observe(model, [watcher], inputs, targets, loss=loss, residual_map=known, training=training)
        table = watcher.table().copy()
        table.insert(0, "loss", value)
        table.insert(0, "point", point)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["point", "loss"])


def _gradients(
    model: nn.Module, inputs: Any, targets: Any, loss: Loss, training: bool
) -> tuple[dict[str, Tensor], float]:
    """Return the gradient of the loss by parameter, and the loss."""
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=training) as network:
        value = loss(network(parameters, inputs), targets)
        return gradients_by(value, parameters), float(value.detach())
