"""Convolutions and linear layers whose weight is standardized per output channel (Brock et al. 2021).

    Ŵ_i = s · g_i · (W_i - μ_i) / (σ_i · √N)

over the N = fan-in elements that output channel i reads, with their mean μ_i and biased standard deviation σ_i, a
learnable gain g_i that starts at 1, and a constant s. For uncorrelated inputs of one mean and unit variance the
output has mean 0 and variance (s · g_i)², whatever the scale of W and whatever the inputs' mean.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless.errors import UnsupportedEditError
from normless.nn.affine import (
    ScalarAffine,
    ScalarConv1d,
    ScalarConv2d,
    ScalarConv3d,
    ScalarLinear,
    of_class,
    scalar_affine,
)

# The least N·σ² that is divided by, as in the authors' code: a weight that is all zero stays zero.
_LEAST = 1e-4


def standardized(weight: Tensor, factor: Tensor) -> Tensor:
    """Ŵ for the weight W, shape (out, …), and the factor s·g, shape (out,); computed in float32 or better."""
    # No axis is flattened: a weight in channels-last order stays in it.
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dim=list(range(1, weight.dim())), correction=0, keepdim=True)
    scale = factor.to(wide.dtype).reshape(mean.shape) * (variance * weight[0].numel()).clamp_min(_LEAST).rsqrt()
    return ((wide - mean) * scale).to(weight.dtype)


class ScaledStd(ScalarAffine):
    """A scalar layer whose weight is standardized.

    Attributes:
        gain: g, one factor per output channel, shape (out,), or None for 1.
        scale: s, a constant: the gain of the activation that the layer reads, 1/β at the start of a branch, or √N.
    """

    gain: Tensor | None

    def start_parts(self) -> None:
        """Gain and scale are 1."""
        super().start_parts()
        self.scale = 1.0
        self.gain = nn.Parameter(self.weight.new_ones(self.weight.shape[0]))

    def scaled(self, factor: Tensor | None) -> Tensor:
        """The standardized weight times a factor, of one element or one per output channel."""
        own = self.scale * (self.weight.new_ones(len(self.weight)) if self.gain is None else self.gain)
        return standardized(self.weight, own if factor is None else own * factor)

    def extra_repr(self) -> str:
        return super().extra_repr() if self.scale == 1.0 else f"{super().extra_repr()}, scale={self.scale:.4g}"


class ScaledStdConv1d(ScaledStd, ScalarConv1d):
    """`nn.Conv1d` with a standardized weight. Shapes: (B, in, T) to (B, out, T')."""


class ScaledStdConv2d(ScaledStd, ScalarConv2d):
    """`nn.Conv2d` with a standardized weight. Shapes: (B, in, H, W) to (B, out, H', W')."""


class ScaledStdConv3d(ScaledStd, ScalarConv3d):
    """`nn.Conv3d` with a standardized weight. Shapes: (B, in, D, H, W) to (B, out, D', H', W')."""


class ScaledStdLinear(ScaledStd, ScalarLinear):
    """`nn.Linear` with a standardized weight. Shapes: (…, in) to (…, out)."""


# By the scalar layer, the last base of each.
_STANDARDIZED: dict[type[nn.Module], type[ScaledStd]] = {
    kind.__bases__[-1]: kind for kind in (ScaledStdConv1d, ScaledStdConv2d, ScaledStdConv3d, ScaledStdLinear)
}


def scaled_std(layer: nn.Module) -> ScaledStd:
    """The same layer with its weight standardized, gain and scale 1: same parameters, scalar parts, hooks, mode.

    A standardized layer is returned as it is. Refused are layers of other types and those whose outputs read one
    value each.
    """
    if isinstance(layer, ScaledStd):
        return layer
    scalar = scalar_affine(layer)
    if scalar.weight[0].numel() < 2:
        raise UnsupportedEditError(
            f"each output reads one value, and a single weight less its mean is zero, in a {type(layer).__name__}"
        )
    kind = _STANDARDIZED.get(type(scalar))
    if kind is None:
        raise UnsupportedEditError(
            f"weights are standardized in convolutions and linear layers, not in a {type(layer).__name__}"
        )
    return of_class(scalar, kind)
