"""A network as a pure function of its parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normless.probes import compute_logits, preserve_state
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

NetworkFunction = Callable[[Mapping[str, Tensor], Any], Tensor]
"""From parameters by qualified name and inputs to logits; omitted parameters are the network's own."""

_SEED = 0


@contextmanager
def as_function(model: nn.Module, *, training: bool) -> Iterator[NetworkFunction]:
    """Yield a network, in training mode or not, as a pure function (parameters, inputs) → logits.

    Given parameters replace the network's own of the same qualified name. Every call starts from the same random
    state and buffers, so calls differ only by their arguments. The network's state is restored as by
    `preserve_state`.
    """

    def function(parameters: Mapping[str, Tensor], inputs: Any) -> Tensor:
        torch.manual_seed(_SEED)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        state = {**buffers, **parameters}
        return compute_logits(lambda *args, **named: functional_call(model, state, args, named), inputs)

    with preserve_state(model, training=training):
        yield function


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters by qualified name, as detached leaves that require gradients.

    Raises:
        ValueError: there are none.
    """
    named = model.named_parameters()
    parameters = {name: value.detach().requires_grad_() for name, value in named if value.requires_grad}
    if not parameters:
        raise ValueError(f"This {type(model).__name__} has no trainable parameter whose update could be measured.")
    return parameters


def gradients_by(
    value: Tensor, parameters: Mapping[str, Tensor], weights: Tensor | None = None, *, again: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of a scalar, or of a weighted sum of elements, by each parameter; zero without influence.

    With `again` the graph is retained.
    """
    leaves = list(parameters.values())
    slopes = torch.autograd.grad(value, leaves, weights, retain_graph=again, materialize_grads=True)
    return dict(zip(parameters, slopes, strict=True))


def gradients_of(values: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of several scalars of one graph by each parameter, shape (values, elements)."""
    rows = [gradients_by(value, parameters, again=value is not values[-1]) for value in values]
    return {name: torch.stack([row[name].flatten() for row in rows]) for name in parameters}


def map_of(model: nn.Module, inputs: Any, residual_map: ResidualMap | None) -> ResidualMap:
    """Return the map of a network, by tracing unless it is given."""
    return residual_map or find_residual_map(model, example_inputs=inputs)
