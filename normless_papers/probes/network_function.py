"""A network as a pure function of its parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normless.probes import compute_logits, preserve_state

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
