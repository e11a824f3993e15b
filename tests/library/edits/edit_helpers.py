"""What the tests of the edits share: one edit applied alone, and what it changed in the state."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

import normless as nl
from normless.edits import Edit

close = torch.testing.assert_close


def edited(model: nn.Module, *edits: Edit, inputs: tuple[Any, ...] = ()) -> Any:
    """A copy of the model with the edits and nothing else."""
    return nl.convert(model, nl.Scheme("test", edits), *inputs)


def altered(before: nn.Module, after: nn.Module) -> set[str]:
    """Names in both states whose values differ."""
    one, other = before.state_dict(), after.state_dict()
    return {name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])}


def assert_changes(before: nn.Module, after: nn.Module, stated: str) -> None:
    """Patterns: `+NAME` is new in the state, `-NAME` gone, `~NAME` of other values, `PATH=TYPE` a new type."""
    old, new = before.state_dict(), after.state_dict()
    types = {path: type(module).__name__ for path, module in before.named_modules()}
    names = {"+": [*new], "-": [*old], "~": [name for name in old if name in new]}
    found = {f"+{name}" for name in new if name not in old} | {f"-{name}" for name in old if name not in new}
    found |= {f"~{name}" for name in altered(before, after)}
    for path, module in after.named_modules():
        if path in types and type(module).__name__ != types[path]:
            found.add(f"{path}={type(module).__name__}")
    expected = set[str]()
    for pattern in stated.split():
        path, _, kind = pattern.partition("=")
        if kind:
            expected |= {f"{name}={kind}" for name in types if fnmatchcase(name, path)}
        else:
            expected |= {path[0] + name for name in names[path[0]] if fnmatchcase(name, path[1:])}
    assert found == expected, (sorted(found - expected), sorted(expected - found))


def randomized(model: nn.Module) -> Any:
    """The model with noise on all parameters and running means, so that a copy of defaults would show."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor) - 0.04)
    return model


def images(size: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(size, channels, 8, 8)
