"""The loss, and moments of weight layers, at points along a direction in weight space.

If the loss at θ + t·d differs from its linear prediction L(θ) + t⟨∇L(θ), d⟩, the gradient does not describe a step of
that length (Bjorck et al., section 3.4 and appendix N, figures 5, 6 and 24).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import ChannelMoments, Loss, observe
from normless.residual import ResidualMap
from normless_papers.probes.network_function import as_function, gradients_by, map_of, trainable_parameters
from normless_papers.probes.owners import require_known

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
