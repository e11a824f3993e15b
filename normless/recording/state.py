"""Leave a network as it was before a pass, whatever its forward code writes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from normless._internal.state import preserve_random_state


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of modules, what is in their containers, gradients, modes and the random states.

    The tape restores the values of tensors.
    """
    attributes = {module: dict(vars(module)) for module in model.modules()}
    holders = (value for own in attributes.values() for value in own.values())
    contents = [(holder, holder.copy()) for holder in holders if type(holder) in (dict, OrderedDict, list, set)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with preserve_random_state(model):
            yield
    finally:
        for module, before in attributes.items():
            vars(module).clear()
            vars(module).update(before)
        for holder, content in contents:
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(content)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def below_autograd() -> Iterator[None]:
    """Skip autograd, which would decompose operations before the tape sees them.

    `torch.inference_mode` does so too, but its tensors spoil later trainings if forward code keeps them in a cache.
    """
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield
