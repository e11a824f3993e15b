"""What the tests of the edits share: one edit applied alone, and what it changed in the state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import normless as nl
from normless.edits import Edit


def edited(model: nn.Module, *edits: Edit, inputs: tuple[Any, ...] = ()) -> Any:
    """A copy of the model with the edits and nothing else."""
    return nl.convert(model, nl.Scheme("test", edits), *inputs)


def added(before: nn.Module, after: nn.Module) -> set[str]:
    """Names in the state that the edit added."""
    return set(after.state_dict()) - set(before.state_dict())


def removed(before: nn.Module, after: nn.Module) -> set[str]:
    """Names in the state that the edit took away."""
    return set(before.state_dict()) - set(after.state_dict())


def altered(before: nn.Module, after: nn.Module) -> set[str]:
    """Names in both states whose values differ."""
    one, other = before.state_dict(), after.state_dict()
    return {name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])}


def retyped(before: nn.Module, after: nn.Module) -> dict[str, str]:
    """Modules of another type than before, by path, with the new type's name."""
    kinds = {name: type(module) for name, module in before.named_modules()}
    return {
        name: type(module).__name__
        for name, module in after.named_modules()
        if name in kinds and type(module) is not kinds[name]
    }


def randomized(model: nn.Module) -> nn.Module:
    """The model with noise on all parameters and running means, so that a copy of defaults would show."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor) - 0.04)
    return model


def images(size: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(size, channels, 8, 8)
