"""Tell a trained norm from a fresh one by its values."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from normless.residual import Layer

# The values of running statistics before training.
_STARTS = {"running_mean": 0, "running_var": 1}


def is_trained(norm: Layer, parameter: Callable[[str], nn.Parameter], module: Callable[[str], nn.Module]) -> bool:
    """Whether a norm has a γ that differs between channels, a nonzero β or, if both are fixed, statistics.

    Args:
        norm: the layer.
        parameter: returns the parameter of a qualified name.
        module: returns the module at a path.
    """
    gammas = [parameter(name) for name in [norm.gamma] if name is not None]
    betas = [parameter(name) for name in norm.shifts[:1]]
    if any((gamma != gamma.flatten()[:1]).any() for gamma in gammas) or any(beta.any() for beta in betas):
        return True
    if ":" in norm.path or any(value.requires_grad for value in gammas + betas):
        return False
    owner = module(norm.path)
    statistics = ((getattr(owner, name, None), start) for name, start in _STARTS.items())
    return any(isinstance(value, Tensor) and bool((value != start).any()) for value, start in statistics)
