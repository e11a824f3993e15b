"""Leave a network and its inputs as they were before a pass, whatever forward code writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from normless._internal.restoring import restorations
from normless.state import preserve_random_state


@contextmanager
def untouched(model: nn.Module, *others: Any) -> Iterator[None]:
    """Restore a network, what its attributes and hooks hold, and `others`, such as inputs; the random states too.

    Restored are the attributes and classes of modules, the contents of containers at any depth, the attributes of
    objects such as data classes, the variables of hooks, small arrays, random generators, and the memory, `.grad` and
    `requires_grad` of tensors. The tape restores the values of tensors. Iterators are not restored.
    """
    restoring = restorations([model, *others])
    try:
        with preserve_random_state(model):
            yield
    finally:
        for restore in restoring:
            restore()


@contextmanager
def below_autograd() -> Iterator[None]:
    """Skip autograd, which would decompose operations before the tape sees them.

    `torch.inference_mode` does so too, but its tensors spoil later trainings if forward code keeps them in a cache.
    """
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield
