"""A network as a function of its parameters and inputs: repeatable, and without a trace on the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normless.arguments import arguments_of
from normless.probes.hooks.preserve_state import undisturbed
from normless.probes.hooks.watch import logits_of

_SEED = 0
OWN: Mapping[str, Tensor] = MappingProxyType({})

NetworkFunction = Callable[[Mapping[str, Tensor], Any], Tensor]


@contextmanager
def as_function(model: nn.Module, *, training: bool) -> Iterator[NetworkFunction]:
    """A function (parameters, inputs) to logits for the body, which may be called many times.

    Parameters that are named (`named_parameters`' names) take the place of the network's own; the others are its
    own, and `OWN` leaves all of them. Every call starts from the same random state and the same buffers, so that
    two calls differ by nothing but their arguments; the network itself is not changed, and its mode, its buffers
    and the random state are put back whatever happens.

    Args:
        model: the network; what it returns holds the logits.
        training: the mode it is called in.
    """
    held = chain(model.parameters(), model.buffers())
    devices = sorted({tensor.device for tensor in held if tensor.is_cuda}, key=str)

    def logits(parameters: Mapping[str, Tensor], inputs: Any) -> Tensor:
        torch.manual_seed(_SEED)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        positional, named = arguments_of(inputs)
        found = logits_of(functional_call(model, {**buffers, **parameters}, positional, named))
        if found is None:
            raise ValueError(f"The output of this {type(model).__name__} holds no tensor to take as logits.")
        return found

    with undisturbed(model, training=training), torch.random.fork_rng(devices=devices):
        yield logits


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters by name, detached from the network, each a leaf that a gradient can be taken by.

    Raises:
        ValueError: there is none.
    """
    found = {
        name: parameter.detach().requires_grad_()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    if not found:
        raise ValueError(f"This {type(model).__name__} has no trainable parameter whose update could be measured.")
    return found
