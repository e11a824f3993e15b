"""The update that makes a network diverge, located.

A network has diverged when the loss of a minibatch is above 1000 nats or not finite; none has been seen to recover
(Bjorck et al., section 3.4). The update before is responsible: along it, on the batch that made it, the loss and the
channels' moments can be followed (`loss_along`, `moments_along`; figures 5 and 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.arguments import arguments_of
from normless.divergence import LOSS_LIMIT, has_diverged
from normless.probes.hooks.observe import Loss
from normless.probes.hooks.watch import logits_of

Batch = tuple[Any, Any]
"""Inputs, as a network's forward takes them, and the targets of the loss."""
MakeOptimizer = Callable[[nn.Module, float], Optimizer]
"""From a network and a learning rate to the optimizer of its parameters."""


def momentum_sgd(model: nn.Module, rate: float) -> Optimizer:
    """Stochastic gradient descent with momentum 0.9 and weight decay 5e-4, the papers' optimizer."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return SGD(trained, lr=rate, momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class DivergingUpdate:
    """The last update before the loss exploded.

    Attributes:
        step: which update it is, from 1; it was made on the step-th batch.
        model: a copy of the network with the weights before the update.
        inputs: of the batch that made it.
        targets: of that batch.
        direction: what it added to every parameter, by qualified name.
    """

    step: int
    model: nn.Module
    inputs: Any
    targets: Any
    direction: dict[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """How the loss went until the batches ended or it exploded.

    Attributes:
        losses: of each minibatch, before its update; if the network diverged, the last is the loss that shows it.
        diverged: whether it did.
        update: what made it diverge; None where it did not, or where it had before the first update.
    """

    losses: tuple[float, ...]
    diverged: bool
    update: DivergingUpdate | None = None


def find_divergence(
    model: nn.Module,
    batches: Iterable[Batch],
    rate: float,
    optimizer: MakeOptimizer = momentum_sgd,
    *,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> Descent:
    """Train a copy of a network until a minibatch loss diverges, and keep the update that was responsible.

    Args:
        model: a network; neither it nor torch's random state is changed.
        batches: inputs and targets; the run ends with the last.
        rate: the learning rate.
        optimizer: from the network and the rate to an optimizer of its parameters.
        loss: (logits, targets) to a scalar.
        limit: the loss above which the network has diverged, in nats.

    Raises:
        ValueError: the network returns no tensor that could be its logits.
    """
    losses: list[float] = []
    made: list[Batch] = []

    def kept() -> Iterator[Batch]:
        for batch in batches:
            made[:] = [*made[-1:], batch]
            yield batch

    with trained_copy(model) as network:
        trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
        before, after = _copies(trained), _copies(trained)
        for value in descend(network, kept(), optimizer(network, rate), loss=loss, limit=limit):
            losses.append(value)
            if not has_diverged(value, limit):
                before, after = after, _copies(trained)
    if not losses or not has_diverged(losses[-1], limit):
        return Descent(tuple(losses), diverged=False)
    if len(losses) == 1:
        return Descent(tuple(losses), diverged=True)
    _restore(network, trained, before)
    direction = {name: after[name] - start for name, start in before.items()}
    inputs, targets = made[0]
    return Descent(
        tuple(losses), diverged=True, update=DivergingUpdate(len(losses) - 1, network, inputs, targets, direction)
    )


@contextmanager
def trained_copy(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of a network in training mode, to be trained in the body; then torch's random state is put back."""
    tensors = chain(model.parameters(), model.buffers())
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        yield deepcopy(model).train()


def descend(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: Optimizer,
    *,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> Iterator[float]:
    """Train a network in place, one step per batch; yields each batch's loss once its step is made.

    Ends with the first loss that has diverged, for which no step is made.

    Raises:
        ValueError: the network returns no tensor that could be its logits.
    """
    for inputs, targets in batches:
        positional, named = arguments_of(inputs)
        optimizer.zero_grad()
        with torch.enable_grad():
            logits = logits_of(model(*positional, **named))
            if logits is None:
                raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
            value = loss(logits, targets)
            number = float(value.detach())
            if not has_diverged(number, limit):
                value.backward()  # type: ignore[no-untyped-call]
        if has_diverged(number, limit):
            yield number
            return
        optimizer.step()
        yield number


def _copies(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def _restore(network: nn.Module, parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
    network.zero_grad(set_to_none=True)
