"""Mean and variance of activations behind a weight layer, from the weight that the layer really uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from normless.nn import ScalarAffine

_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **{f"conv{n}d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups") for n in (1, 2, 3)},
}


def weighted_moments(module: nn.Module, moments: Tensor) -> Tensor | None:
    """Moments behind a linear layer or convolution: E[y] = W∗E[x] + b and Var[y] = W²∗Var[x].

    The fluctuations of different inputs are taken as uncorrelated, which holds on average over weights of random
    sign. W is what the layer multiplies by, where it computes that from its parameters: standardized, normalized or
    masked, with its scalars.

    Args:
        module: a linear layer or convolution, of a subclass too.
        moments: means, variances and further variances of its inputs, stacked; shape (k, …), the first the means.

    Returns:
        The same of its outputs, shape (k, …), or None where the module does more than multiply by a weight once
        (padding aside), or is of another kind.
    """
    if isinstance(module, _ConvTransposeNd) or not isinstance(module, (_ConvNd, nn.Linear)):
        return None
    if isinstance(module, ScalarAffine) and module.input_bias is not None:
        moments = torch.cat([moments[:1] + module.input_bias.double(), moments[1:]])
    through = _OnMoments(moments)
    with through:
        if not isinstance(module, ScalarAffine):
            result: Tensor = module.forward(moments)
        elif isinstance(module, _ConvNd):
            result = module._conv_forward(moments, *module.folded())
        else:
            result = F.linear(moments, *module.folded())
    return result if result is through.result else None


class _OnMoments(TorchFunctionMode):
    """Lets a layer's own forward code multiply means by its weight, and variances by the weight's square."""

    def __init__(self, moments: Tensor) -> None:
        super().__init__()
        self.moments = moments
        self.result: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ARGUMENTS:
            given = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
            if given.pop("input") is self.moments:
                self.result = _multiplied(func, self.moments, **given)
                return self.result
        result = func(*args, **kwargs)
        if name == "pad" and args and args[0] is self.moments:
            self.moments = result
        return result


def _multiplied(func: Any, moments: Tensor, *, weight: Tensor, bias: Tensor | None = None, **rest: Any) -> Tensor:
    wide = weight.to(moments)
    mean = func(moments[:1], wide, None if bias is None else bias.to(moments), **rest)
    return torch.cat([mean, func(moments[1:], wide.square(), None, **rest)])
