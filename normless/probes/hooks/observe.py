"""Passes through a network on batches: observed by watchers, or as steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from normless.arguments import arguments_of
from normless.divergence import LOSS_LIMIT, has_diverged
from normless.probes.hooks.attach import attach_hooks, logits_of
from normless.probes.hooks.preserve_state import preserve_state
from normless.probes.hooks.watcher import Setting, Watcher, needs_gradients
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

Loss = Callable[[Tensor, Any], Tensor]
"""From logits and targets to a scalar, in nats."""
Batch = tuple[Any, Any]
"""Inputs, as a network's forward takes them, and targets of the loss."""


def observe(
    model: nn.Module,
    watchers: Sequence[Watcher],
    inputs: Any,
    targets: Any = None,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> float:
    """Run one batch through a network while watchers measure, with a backward pass if one of them needs gradients.

    Weights, `.grad`, buffers, modes and random states are restored, after errors too.

    Args:
        model: the network.
        watchers: the measurements.
        inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of forward.
        targets: second argument of `loss`; required where gradients are measured.
        loss: (logits, targets) to a scalar in nats, usually the mean over examples.
        residual_map: the network's map; computed if None.
        training: whether the pass is made in training mode, in which batch norms use the batch's statistics.

    Returns:
        The loss, NaN without targets.

    Raises:
        ValueError: gradients are measured and there are no targets or no trainable parameters, or the network
            returns no tensor that can serve as logits.
    """
    residual_map = residual_map or find_residual_map(model, example_inputs=inputs)
    backward = any(needs_gradients(watcher) for watcher in watchers)
    if backward and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"Gradients are measured, and this {type(model).__name__} has no trainable parameter.")
    if backward and targets is None:
        raise ValueError("Gradients of a loss are measured, so targets are needed: pass (inputs, targets).")
    with (
        preserve_state(model, training=training),
        torch.set_grad_enabled(backward),
        attach_hooks(Setting(model, residual_map, targets), watchers),
    ):
        logits = compute_logits(model, inputs)
        if targets is None:
            return float("nan")
        value = loss(logits, targets)
        if backward:
            value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach())


def compute_logits(model: nn.Module, inputs: Any, overrides: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits of a network, optionally with other parameters and buffers in place of its own.

    Raises:
        ValueError: the output holds no floating-point tensor.
    """
    positional, named = arguments_of(inputs)
    if overrides is None:
        output = model(*positional, **named)
    else:
        output = functional_call(model, dict(overrides), positional, named)
    logits = logits_of(output)
    if logits is None:
        raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
    return logits


def descend(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: Optimizer,
    *,
    loss: Loss = F.cross_entropy,
    limit: float = LOSS_LIMIT,
) -> Iterator[float]:
    """Train a network in place, one step per batch, and yield each batch's loss after its step.

    A diverged loss is the last; no step is made for it.

    Raises:
        ValueError: the network returns no tensor that can serve as logits.
    """
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss(compute_logits(model, inputs), targets)
            number = float(value.detach())
            diverged = has_diverged(number, limit)
            if not diverged:
                value.backward()  # type: ignore[no-untyped-call]
        if not diverged:
            optimizer.step()
        yield number
        if diverged:
            return
