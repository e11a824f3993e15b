"""A network as a pure function of its parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes import compute_logits, preserve_state
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

NetworkFunction = Callable[[Mapping[str, Tensor], Any], Tensor]
"""From parameters by qualified name and inputs to logits; other parameters are the network's own."""

_SEED = 0


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


def gradients_of(values: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of several scalars of one graph by each parameter: shape (values, elements)."""
    rows = []
    for count, value in enumerate(values, 1):
        last, leaves = count == len(values), list(parameters.values())
        parts = torch.autograd.grad(value, leaves, retain_graph=not last, materialize_grads=True)
        rows.append([part.flatten() for part in parts])
    return {name: torch.stack(column) for name, column in zip(parameters, zip(*rows, strict=True), strict=True)}


def map_of(model: nn.Module, inputs: Any, residual_map: ResidualMap | None) -> ResidualMap:
    """The map of a network, found by a pass unless it is known."""
    if residual_map is not None:
        return residual_map
    positional, named = arguments_of(inputs)
    return find_residual_map(model, *positional, **named)
