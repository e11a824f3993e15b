"""Passes through a network that leave it unchanged: observed by watchers, or as a function of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from normless.arguments import arguments_of
from normless.probes.hooks.attach import attach_hooks, logits_of
from normless.probes.hooks.preserve_state import preserve_state
from normless.probes.hooks.watcher import Setting, Watcher, needs_gradients
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

Loss = Callable[[Tensor, Any], Tensor]
"""From logits and targets to a scalar, in nats."""
NetworkFunction = Callable[[Mapping[str, Tensor], Any], Tensor]
"""From parameters by qualified name and inputs to logits; other parameters are the network's own."""

_SEED = 0


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
    if residual_map is None:
        positional, named = arguments_of(inputs)
        residual_map = find_residual_map(model, *positional, **named)
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


@contextmanager
def as_function(model: nn.Module, *, training: bool) -> Iterator[NetworkFunction]:
    """A network as a pure function (parameters, inputs) → logits, for the body.

    Given parameters replace the network's own of the same qualified name; an empty mapping replaces none. Every call
    starts from the same random state and buffers, so calls differ by their arguments only. The network's state is
    restored as by `preserve_state`.

    Args:
        model: the network.
        training: whether it is called in training mode.
    """

    def function(parameters: Mapping[str, Tensor], inputs: Any) -> Tensor:
        torch.manual_seed(_SEED)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return compute_logits(model, inputs, {**buffers, **parameters})

    with preserve_state(model, training=training):
        yield function


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


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters by qualified name, as detached leaves that require gradients.

    Raises:
        ValueError: there are none.
    """
    parameters = {
        name: parameter.detach().requires_grad_()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    if not parameters:
        raise ValueError(f"This {type(model).__name__} has no trainable parameter whose update could be measured.")
    return parameters
