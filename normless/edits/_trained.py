"""Tell a trained norm from a fresh one by its values."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from normless.residual import Layer

# The values of running statistics before training.
_STARTS = {"running_mean": 0, "running_var": 1}


def is_trained(norm: Layer, model: nn.Module) -> bool:
    """Whether a norm has a γ that differs between channels, a nonzero β or, if both are fixed, statistics."""
    gammas = [parameter_at(model, name) for name in [norm.gamma] if name is not None]
    betas = [parameter_at(model, name) for name in norm.shifts[:1]]
    if any((gamma != gamma.flatten()[:1]).any() for gamma in gammas) or any(beta.any() for beta in betas):
        return True
    if ":" in norm.path or any(value.requires_grad for value in gammas + betas):
        return False
    owner = module_at(model, norm.path)
    statistics = ((getattr(owner, name, None), start) for name, start in _STARTS.items())
    return any(isinstance(value, Tensor) and bool((value != start).any()) for value, start in statistics)


def module_at(model: nn.Module, path: str) -> nn.Module:
    """Return the module of a qualified name."""
    # Edits call it a hundred times per block; Module.__getattr__ and get_submodule are slower.
    module: Any = model
    for name in path.split(".") if path else ():
        module = module._modules[name]
    return cast(nn.Module, module)


def parameter_at(model: nn.Module, name: str) -> nn.Parameter:
    """Return the parameter of a qualified name."""
    path, _, last = name.rpartition(".")
    return cast(nn.Parameter, module_at(model, path)._parameters[last])
