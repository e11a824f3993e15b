"""Repeatable forward passes on copies of a network, on changed inputs and without zero weights."""

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

from normless.lifting import unfused
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
    """Run a copy of a network, after `prepare`, on clones of its arguments from a fixed random state.

    Returns its output and the copy. To be called inside `reproducible_kernels`.
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
    kernels = torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=False,
        deterministic=True,
        allow_tf32=torch.backends.cudnn.allow_tf32,
    )
    # The fused encoder layer hides its modules.
    with unfused(), torch.no_grad(), preserve_random_state(model), kernels:
        yield


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


def batch_size(arguments: Arguments) -> int:
    """The number of examples, 2 or more: the length of axis 0 of the first tensor that has one."""
    lengths = [tensor.shape[0] for tensor in tensors_of(arguments) if tensor.dim()]
    if not lengths or lengths[0] < 2:
        problem = f"that has length {lengths[0]}" if lengths else "there is no tensor with an axis"
        raise ValueError(
            "Whether examples mix is measured on a batch of at least two, along axis 0 of the first tensor; "
            f"{problem}. Give more examples."
        )
    return lengths[0]


def groups(batch: int) -> Iterator[frozenset[int]]:
    """2⌈log₂ B⌉ sets of examples, of which for all i ≠ j one contains i and not j."""
    for bit in range((batch - 1).bit_length()):
        for value in (0, 1):
            yield frozenset(example for example in range(batch) if example >> bit & 1 == value)


def redrawn(arguments: Arguments, batch: int, group: frozenset[int]) -> Arguments:
    """The arguments with every element of a group's examples replaced by another value of the same tensor."""
    generator = torch.Generator().manual_seed(_SEED)
    varies = False

    def redraw(tensor: Tensor) -> Tensor:
        nonlocal varies
        if tensor.is_complex():
            return torch.view_as_complex(redraw(torch.view_as_real(tensor)))
        if not tensor.dim() or tensor.shape[0] != batch:
            return tensor
        values, index = torch.unique(tensor, return_inverse=True)
        if len(values) < 2:
            return tensor
        varies = True
        # Without the extremes, so that a maximum over the batch changes.
        excluded = 1 if len(values) > 3 else 0
        inner = values[excluded : len(values) - excluded]
        rows = sorted(group)
        own = (index[rows] - excluded).clamp(0, len(inner) - 1)
        step = torch.randint(1, len(inner), own.shape, generator=generator).to(tensor.device)
        others = tensor.clone()
        others[rows] = inner[(own + step) % len(inner)]
        return others

    result = arguments.map(redraw)
    if not varies:
        raise ValueError(
            "Examples are changed to other values of the same input, and every input has one value only. "
            "Give inputs that vary, such as torch.randn."
        )
    return result


def without_zeros(model: nn.Module) -> nn.Module:
    """A copy with small random numbers in place of zeros among trainable weights, as in multipliers."""
    copied = deepcopy(model)
    generator = torch.Generator().manual_seed(_SEED)
    for parameter in copied.parameters():
        if parameter.requires_grad:
            small = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.where(parameter == 0, small.to(parameter), parameter))
    return copied
