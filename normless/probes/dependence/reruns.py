"""Forward passes that can be repeated: each on a fresh copy of the network, with the same random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, is_dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

_SEED = 0


@dataclass(frozen=True)
class Arguments:
    """What a network's forward takes."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def map(self, function: Callable[[Tensor], Tensor]) -> Arguments:
        """The same arguments with a function applied to every tensor among them."""
        return Arguments(map_tensors(function, self.positional), map_tensors(function, self.named))


def run_fresh(
    model: nn.Module, arguments: Arguments, watch: Callable[[nn.Module], object] | None = None
) -> tuple[Any, nn.Module]:
    """Run a copy of a network on clones of its arguments from a fixed random state; return its output and the copy.

    `watch` is called with the copy before it runs. Nothing that forward does, in place, to buffers or to
    attributes, reaches the network or its arguments; call it inside `undisturbed_process`.
    """
    fresh = deepcopy(model)
    if watch is not None:
        watch(fresh)
    clones = arguments.map(Tensor.clone)
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    return fresh(*clones.positional, **clones.named), fresh


@contextmanager
def undisturbed_process(model: nn.Module) -> Iterator[None]:
    """Run the body without gradients, by kernels chosen alike every time; then put every random state back."""
    devices = {tensor.device for tensor in chain(model.parameters(), model.buffers()) if tensor.is_cuda}
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    fused = torch.backends.mha.get_fastpath_enabled()
    # The fused encoder layer hides its modules.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=sorted(devices, key=str)),
            torch.backends.cudnn.flags(
                enabled=torch.backends.cudnn.enabled,
                benchmark=False,
                deterministic=True,
                allow_tf32=torch.backends.cudnn.allow_tf32,
            ),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A nested value with a function applied to every tensor in it, those in dataclasses included."""

    def at_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if is_dataclass(leaf) and not isinstance(leaf, type) and hasattr(leaf, "__dict__"):
            mapped = copy(leaf)
            vars(mapped).update({name: map_tensors(function, held) for name, held in vars(leaf).items()})
            return mapped
        return leaf

    return tree_map(at_leaf, value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested value that have elements to compare: neither sparse nor nested ones."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if _comparable(tensor):
            found.append(tensor)
        return tensor

    map_tensors(keep, value)
    return found


def replace_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """A nested value with others in place of its tensors, in the order of `tensors_of`."""
    others = iter(tensors)
    return map_tensors(lambda tensor: next(others) if _comparable(tensor) else tensor, value)


def _comparable(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
