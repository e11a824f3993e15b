"""Passes through a network on batches: observed by watchers, or as steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from normless._internal.arguments import applied, arguments_of
from normless.probes._divergence import LOSS_LIMIT, has_diverged
from normless.probes.hooks._losses import Loss as Loss, loss_of, require_gradient
from normless.probes.hooks._watcher import Setting, Watcher, attach_hooks, logits_of, overrides
from normless.residual import ResidualMap, residual_map as find_residual_map
from normless.state import preserve_state

LabelledBatch = tuple[Any, Any]
"""Inputs, as a network's forward takes them, and targets of the loss."""

_BACKWARD = ("on_layer_gradient", "on_sum_gradient", "on_logits_gradient", "on_parameter_gradient")


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
        inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of forward.
        targets: of the loss; required where gradients are measured.
        loss: takes what the network returns, or its logits, and the targets, or the whole batch: `loss_of`.
        residual_map: the network's map; computed if None.
        training: whether the pass is made in training mode, in which batch norms use the batch's statistics.

    Returns:
        The loss, NaN without targets.

    Raises:
        LossValueError: the loss does not return one number, or one without a gradient.
        ValueError: gradients are measured and there are no targets or no trainable parameters, or the network
            returns no tensor that can serve as logits.
    """
    residual_map = residual_map or find_residual_map(model, example_inputs=inputs)
    backward = any(overrides(watcher, *_BACKWARD) for watcher in watchers)
    if backward and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"Gradients are measured, and this {type(model).__name__} has no trainable parameter.")
    if backward and targets is None:
        raise ValueError("Gradients of a loss are measured, so targets are needed: pass (inputs, targets).")
    with (
        preserve_state(model, inputs, targets, training=training),
        torch.set_grad_enabled(backward),
        attach_hooks(Setting(model, residual_map, targets), watchers),
    ):
        output = compute_output(model, inputs)
        if targets is None:
            return float("nan")
        value = loss_of(loss, output, inputs, targets)
        if backward:
            require_gradient(value)
            value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach())


def compute_output(model: Callable[..., Any], inputs: Any) -> Any:
    """Return the output of a network for inputs: a tensor, a tuple or a dictionary of arguments."""
    positional, named = arguments_of(inputs)
    return applied(model, *positional, **named)


def compute_logits(model: Callable[..., Any], inputs: Any) -> Tensor:
    """Return the logits of a network; ValueError if its output holds no floating-point tensor."""
    logits = logits_of(compute_output(model, inputs))
    if logits is None:
        raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
    return logits


def descend(
    model: nn.Module,
    batches: Iterable[LabelledBatch],
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
            value = loss_of(loss, compute_output(model, inputs), inputs, targets)
        number = float(value.detach())
        if has_diverged(number, limit):
            yield number
            return
        value.backward()  # type: ignore[no-untyped-call]
        if takes_closure(optimizer):

            def closure(inputs: Any = inputs, targets: Any = targets) -> Tensor:
                optimizer.zero_grad()
                with torch.enable_grad():
                    again = loss_of(loss, compute_output(model, inputs), inputs, targets)
                again.backward()  # type: ignore[no-untyped-call]
                return again

            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            optimizer.step()
        yield number


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether the steps of an optimizer require a closure that computes the loss anew, as those of LBFGS do."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty
