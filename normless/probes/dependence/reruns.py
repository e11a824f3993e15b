"""Repeatable forward passes: each on a new copy of the network, with the same random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normless.probes.hooks.preserve_state import preserve_random_state

_SEED = 0


@dataclass(frozen=True)
class Arguments:
    """The arguments of a network's forward."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def map(self, function: Callable[[Tensor], Tensor]) -> Arguments:
        """The arguments with a function applied to every tensor in them."""
        return Arguments(map_tensors(function, self.positional), map_tensors(function, self.named))


def run_copy(
    model: nn.Module, arguments: Arguments, prepare: Callable[[nn.Module], object] | None = None
) -> tuple[Any, nn.Module]:
    """Run a copy of a network on clones of its arguments from a fixed random state; return its output and the copy.

    `prepare` is called with the copy before it runs. In-place changes by forward do not reach the network or the
    arguments. To be called inside `reproducible_kernels`.
    """
    fresh = deepcopy(model)
    if prepare is not None:
        prepare(fresh)
    clones = arguments.map(Tensor.clone)
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    return fresh(*clones.positional, **clones.named), fresh


@contextmanager
def reproducible_kernels(model: nn.Module) -> Iterator[None]:
    """Run the body without gradients and with deterministic kernels; restore all settings and random states."""
    fused = torch.backends.mha.get_fastpath_enabled()
    # The fused encoder layer hides its modules.
    torch.backends.mha.set_fastpath_enabled(False)
    kernels = torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=False,
        deterministic=True,
        allow_tf32=torch.backends.cudnn.allow_tf32,
    )
    try:
        with torch.no_grad(), preserve_random_state(model), kernels:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A nested value with a function applied to every tensor in it, including those in dataclasses."""

    def at_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if is_dataclass(leaf) and not isinstance(leaf, type) and hasattr(leaf, "__dict__"):
            mapped = copy(leaf)
            vars(mapped).update({name: map_tensors(function, item) for name, item in vars(leaf).items()})
            return mapped
        return leaf

    return tree_map(at_leaf, value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested value, except for sparse and nested ones."""
    tensors: list[Tensor] = []

    def append(tensor: Tensor) -> Tensor:
        if _is_dense(tensor):
            tensors.append(tensor)
        return tensor

    map_tensors(append, value)
    return tensors


def replace_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """A nested value with its tensors replaced, in the order of `tensors_of`."""
    replacements = iter(tensors)
    return map_tensors(lambda tensor: next(replacements) if _is_dense(tensor) else tensor, value)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
