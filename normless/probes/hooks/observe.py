"""One pass through a network, forward and where needed back, told to watchers; the network is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes.hooks.preserve_state import undisturbed
from normless.probes.hooks.watch import logits_of, watching
from normless.probes.hooks.watcher import Setting, Watcher, goes_back
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

Loss = Callable[[Tensor, Any], Tensor]


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
    """Pass one batch through a network while watchers measure; back too if one of them needs gradients.

    Weights, their `.grad`, buffers, modes and random state are afterwards what they were, whatever happens.

    Args:
        model: the network.
        watchers: what is to be measured.
        inputs: one tensor, a tuple of positional or a dictionary of keyword arguments of its forward.
        targets: what `loss` takes beside the logits; needed only where gradients are measured.
        loss: (logits, targets) to a scalar in nats, the mean over examples as a rule.
        residual_map: the network's map, found where it is not given.
        training: whether the pass is made in training mode, so that norms use the batch's statistics.

    Returns:
        The loss, NaN where no targets came.

    Raises:
        ValueError: gradients are measured and there are no targets or no trainable parameters, or the network
            returns no tensor that could be its logits.
    """
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    back = any(goes_back(watcher) for watcher in watchers)
    if back and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"Gradients are measured, and this {type(model).__name__} has no trainable parameter.")
    if back and targets is None:
        raise ValueError("Gradients of a loss are measured, so targets are needed: pass (inputs, targets).")
    setting = Setting(model, found, targets)
    with (
        undisturbed(model, training=training),
        without_gradients(model),
        torch.set_grad_enabled(back),
        watching(setting, watchers),
    ):
        output = logits_of(model(*positional, **named))
        if output is None:
            raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
        if targets is None:
            return float("nan")
        value = loss(output, targets)
        if back:
            value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach())


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Take the parameters' `.grad` away for the body, and put them back."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
