"""The update with which the training of a network diverges.

Training has diverged when a minibatch loss is above 1000 nats or not finite; no run recovered from that (Bjorck et
al., section 3.4). The last update before is responsible: `loss_along` and `moments_along` of `normless_papers.probes`
follow loss and channel moments along it (figures 5 and 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.divergence import LOSS_LIMIT, has_diverged
from normless.probes import Batch, Loss, descend, preserve_random_state

MakeOptimizer = Callable[[nn.Module, float], Optimizer]
"""From a network and a learning rate to the optimizer of its parameters."""


def momentum_sgd(model: nn.Module, rate: float) -> Optimizer:
    """Stochastic gradient descent with momentum 0.9 and weight decay 5e-4, the papers' optimizer."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return SGD(trained, lr=rate, momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class DivergingUpdate:
    """The last update before the loss diverged.

    Attributes:
        step: its number from 1, also that of its batch.
        model: a copy of the network with the weights before the update.
        inputs: of the batch.
        targets: of the batch.
        direction: the change of every parameter, by qualified name.
    """

    step: int
    model: nn.Module
    inputs: Any
    targets: Any
    direction: dict[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """The losses of a training until the batches ended or it diverged.

    Attributes:
        losses: of each minibatch before its update; the last one is the diverged loss, if any.
        diverged: whether the training diverged.
        update: the last update; None if the training did not diverge, or did before the first update.
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
    """Train a copy of a network until a minibatch loss diverges, and return the responsible update.

    Args:
        model: a network; neither it nor the random states are changed.
        batches: inputs and targets; the training ends with the last.
        rate: the learning rate.
        optimizer: from the network and the rate to an optimizer of its parameters.
        loss: (logits, targets) to a scalar.
        limit: the loss, in nats, above which the training has diverged.

    Raises:
        ValueError: the network returns no tensor that can serve as logits.
    """
    losses: list[float] = []
    latest: list[Batch] = []

    def remembered() -> Iterator[Batch]:
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
    with torch.no_grad():
        for name, value_before in before.items():
            trained[name].copy_(value_before)
    network.zero_grad(set_to_none=True)
    direction = {name: after[name] - start for name, start in before.items()}
    inputs, targets = latest[0]
    return Descent(tuple(losses), diverged, DivergingUpdate(len(losses) - 1, network, inputs, targets, direction))


@contextmanager
def trained_copy(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of a network in training mode for the body to train; random states are restored afterwards."""
    with preserve_random_state(model):
        yield deepcopy(model).train()


def _copies(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
