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
from math import inf, sqrt
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.probes import ChannelMoments, LabelledBatch, Loss, descend, has_diverged, observe
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

# The ratio of successive rates, and the range of those tried.
_FACTOR, _LOWEST, _HIGHEST = 4.0, 1e-8, 1e4


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
) -> Descent:
    """Train a copy of a network until a minibatch loss diverges, and return the responsible update.

    Args:
        model: a network; it and the random states are unchanged.
        batches: inputs and targets; the training ends with the last.
        rate, optimizer: the learning rate, and from a network and a rate to an optimizer of its parameters.
        loss: (logits, targets) to a scalar, in nats.

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
        for value in descend(network, remembered(), optimizer(network, rate), loss=loss):
            losses.append(value)
            if not has_diverged(value):
                before, after = after, _copies(trained)
    diverged = bool(losses) and has_diverged(losses[-1])
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
    start: float = 0.1,
    loss: Loss = F.cross_entropy,
) -> StableRate:
    """Search for the largest rate at which a copy of the network trains on some batches without diverging.

    Rates go up or down from `start` by factors of 4 until one diverges and one does not, and the one between them is
    tried last, so that the largest stable rate is known to a factor of 2. Every run starts from the same weights and
    random state, and ends when its loss diverges. A larger rate is assumed to diverge if a smaller one does.

    Args:
        model, batches, optimizer, loss: as for `find_divergence`.
        start: the first rate tried; none beyond 1e-8 and 1e4 is.

    Raises:
        ValueError: there are no batches, or the network returns no logits.
    """
    if not batches:
        raise ValueError("The search trains on batches, got none.")
    stable, diverging, trials = 0.0, inf, list[dict[str, float | bool]]()

    def tries(rate: float) -> None:
        nonlocal stable, diverging
        descent = find_divergence(model, batches, rate, optimizer, loss=loss)
        losses = descent.losses
        trial = {"steps": len(losses) - descent.diverged, "first_loss": losses[0], "last_loss": losses[-1]}
        trials.append({"rate": rate, "diverged": descent.diverged} | trial)
        stable, diverging = (stable, rate) if descent.diverged else (rate, diverging)

    rate = start
    while (stable == 0 or diverging == inf) and _LOWEST <= rate <= _HIGHEST:
        tries(rate)
        if trials[0]["steps"] == 0:
            return StableRate(0.0, 0.0, pd.DataFrame(trials))
        rate = rate / _FACTOR if trials[-1]["diverged"] else rate * _FACTOR
    if 0 < stable < diverging < inf:
        tries(sqrt(stable * diverging))
    return StableRate(stable, diverging, pd.DataFrame(trials))


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
    model: nn.Module, inputs: Any, targets: Any, *, loss: Loss = F.cross_entropy
) -> dict[str, Tensor]:
    """Return the direction -∇L of a batch, along which a step of length t is gradient descent at the rate t.

    The network's state is restored; arguments and errors are those of `normless.probes.observe`.
    """
    gradients, _ = _gradients(model, inputs, targets, loss)
    return {name: -gradient for name, gradient in gradients.items()}


def loss_along(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    direction: Direction,
    points: Sequence[float],
    *,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Measure the loss of a batch at θ + t·direction, and predict it linearly.

    Args:
        model, inputs, targets, loss: as for `normless.probes.observe`; the network's state is restored.
        direction: from `steepest_descent`, or the `direction` of a `DivergingUpdate`.
        points: the t: 0 before and 1 after an update; learning rates for `steepest_descent`.

    Returns:
        A row per point: `point`, `loss` and `predicted_loss`.

    Raises:
        ValueError: a direction of another network, no trainable parameter, or no logits.
    """
    gradients, start = _gradients(model, inputs, targets, loss)
    _require_fit(direction, gradients, "trainable parameter")
    slope = sum(float((gradients[name].double() * part.double()).sum()) for name, part in direction.items())
    rows = []
    with torch.no_grad(), as_function(model, training=True) as network:
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
) -> pd.DataFrame:
    """Measure `ChannelMoments` of every weight layer at θ + t·direction (Bjorck et al., figure 6).

    Arguments are those of `loss_along`. The columns of `ChannelMoments` follow `point`
    and `loss`, the batch's loss at that point, NaN without targets.
    """
    known, watcher = map_of(model, inputs, None), ChannelMoments()
    tables = []
    for point in points:
        with moved(model, direction, point):
            value = observe(model, [watcher], inputs, targets, loss=loss, residual_map=known)
        table = watcher.table().copy()
        table.insert(0, "loss", value)
        table.insert(0, "point", point)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["point", "loss"])


def _gradients(model: nn.Module, inputs: Any, targets: Any, loss: Loss) -> tuple[dict[str, Tensor], float]:
    """Return the gradient of the loss by parameter, and the loss."""
    parameters = trainable_parameters(model)
    with torch.enable_grad(), as_function(model, training=True) as network:
        value = loss(network(parameters, inputs), targets)
        return gradients_by(value, parameters), float(value.detach())
