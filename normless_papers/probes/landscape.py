"""The loss, and anything else that can be watched, at points along a direction in the space of weights.

Beside the loss at θ + t·d stands what the gradient at the start says of it, L(θ) + t⟨∇L(θ), d⟩ (Bjorck et al.,
section 3.4 and appendix N, figures 5, 6 and 24): where the two part, a step of that length cannot be judged by the
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes import ChannelMoments, Loss, Watcher, compute_logits, observe, preserve_state, require_known
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

Direction = Mapping[str, Tensor]
"""By the parameters' qualified names, what is added to them over a step of length 1."""


@contextmanager
def moved(model: nn.Module, direction: Direction, step: float) -> Iterator[None]:
    """Run the body with the weights at θ + step·direction; then put back the very same weights, whatever happens.

    Raises:
        ValueError: the direction names a parameter that the network does not have, or is of another shape.
    """
    known = dict(model.named_parameters())
    require_known(list(direction), known, "parameter")
    for name, part in direction.items():
        if part.shape != known[name].shape:
            shapes = tuple(part.shape), tuple(known[name].shape)
            raise ValueError(f"The direction of {name} has the shape {shapes[0]}, the parameter {shapes[1]}.")
    kept = {name: known[name].detach().clone() for name in direction}
    try:
        with torch.no_grad():
            for name, part in direction.items():
                known[name].add_(part, alpha=step)
        yield
    finally:
        with torch.no_grad():
            for name, start in kept.items():
                known[name].copy_(start)


def steepest_descent(
    model: nn.Module, inputs: Any, targets: Any, *, loss: Loss = F.cross_entropy, training: bool = True
) -> dict[str, Tensor]:
    """The direction -∇L of a batch: a step of length t along it is one of plain gradient descent at the rate t.

    Args:
        model: a network; it is left as it was.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        loss: (logits, targets) to a scalar.
        training: whether norms use the batch's statistics.

    Raises:
        ValueError: the network has no trainable parameter, or returns no tensor.
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
    """The loss of a batch at θ + t·direction, beside what the gradient at θ says of it.

    Args:
        model: a network; it is left as it was.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        direction: from `steepest_descent`, or the `direction` of a `DivergingUpdate`.
        points: the t. Along an update 0 is before it and 1 behind it; along a descent they are learning rates.
        loss: (logits, targets) to a scalar.
        training: whether norms use the batch's statistics.

    Returns:
        A row per point: `point`, `loss` and `predicted_loss` = L(θ) + t⟨∇L(θ), direction⟩.

    Raises:
        ValueError: a direction of another network, no trainable parameter, or no logits.
    """
    gradients, start = _gradients(model, inputs, targets, loss, training)
    slope = sum(float((gradients[name].double() * part.double()).sum()) for name, part in direction.items())
    rows = []
    for point in points:
        with moved(model, direction, point), preserve_state(model, training=training), torch.no_grad():
            value = float(_loss(model, inputs, targets, loss))
        rows.append({"point": point, "loss": value, "predicted_loss": start + point * slope})
    return pd.DataFrame(rows, columns=["point", "loss", "predicted_loss"])


def observe_along(
    model: nn.Module,
    watcher: Watcher,
    inputs: Any,
    targets: Any,
    direction: Direction,
    points: Sequence[float],
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """The tables of a watcher at θ + t·direction, one below the other.

    Args are those of `loss_along`, and the watcher; targets may be None if it needs no gradients.

    Returns:
        The watcher's columns behind `point` and `loss`, the batch's loss there, NaN without targets.
    """
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    tables = []
    for point in points:
        with moved(model, direction, point):
            value = observe(model, [watcher], inputs, targets, loss=loss, residual_map=found, training=training)
        table = watcher.table().copy()
        table.insert(0, "loss", value)
        table.insert(0, "point", point)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["point", "loss"])


def moments_along(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    direction: Direction,
    points: Sequence[float],
    *,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """The channel moments of every weight layer along a direction (Bjorck et al., figure 6).

    Returns:
        The columns of `ChannelMoments` behind `point` and `loss`.
    """
    return observe_along(
        model,
        ChannelMoments(),
        inputs,
        targets,
        direction,
        points,
        residual_map=residual_map,
        training=training,
    )


def _gradients(
    model: nn.Module, inputs: Any, targets: Any, loss: Loss, training: bool
) -> tuple[dict[str, Tensor], float]:
    """The gradient of the loss by parameter, and the loss."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ValueError(
            f"The gradient of the loss is measured, and this {type(model).__name__} has nothing to train."
        )
    with preserve_state(model, training=training), torch.enable_grad():
        value = _loss(model, inputs, targets, loss)
        found = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
    return dict(zip(trained, found, strict=True)), float(value.detach())


def _loss(model: nn.Module, inputs: Any, targets: Any, loss: Loss) -> Tensor:
    return loss(compute_logits(model, inputs), targets)
