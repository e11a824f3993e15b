"""Convolutions and linear layers with weights standardized per output channel (Brock et al. 2021).

    Ŵ_i = s · g_i · (W_i - μ_i) / (σ_i · √N)

over the N = fan-in elements that output channel i reads, with their mean μ_i and biased standard deviation σ_i, a
learnable gain g_i that starts at 1, and a constant s. For uncorrelated inputs with equal means and unit variance, the
output has mean 0 and variance (s · g_i)² for any scale of W and any mean of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless.errors import UnsupportedEditError
from normless.nn._affine import (
    ScalarAffine,
    ScalarConv1d,
    ScalarConv2d,
    ScalarConv3d,
    ScalarLinear,
    class_name,
    of_class,
    scalar_affine,
)

# The smallest divisor N·σ², as in the authors' code, so that a weight of zeros stays zero.
_LEAST = 1e-4


def standardized(weight: Tensor, factor: Tensor) -> Tensor:
    """Return Ŵ for the weight W, shape (out, …), and the factor s·g, shape (out,), computed in at least float32."""
    # Flattening axes would change the order of a channels-last weight.
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dim=list(range(1, weight.dim())), correction=0, keepdim=True)
    scale = factor.to(wide.dtype).reshape(mean.shape) * (variance * weight[0].numel()).clamp_min(_LEAST).rsqrt()
    return ((wide - mean) * scale).to(weight.dtype)


class ScaledStd(ScalarAffine):
    """A scalar layer with a standardized weight.

    Attributes:
        gain: g, one factor per output channel, shape (out,), or None for 1.
        scale: s, a constant: the gain of the activation that the layer reads, 1/β at the start of a branch, or √N.
    """

    gain: Tensor | None

    def start_parts(self) -> None:
        """Start with gain and scale 1."""
        super().start_parts()
        self.scale = 1.0
        self.gain = nn.Parameter(self.weight.new_ones(self.weight.shape[0]))

    def scaled(self, factor: Tensor | None) -> Tensor:
        """Return the standardized weight times a factor of one element or one per output channel."""
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


@torch.no_grad()
def keep_scale_of_weight(layer: ScaledStd) -> None:
    """Set the gain of a standardized layer so that its weight is W_i - μ_i, with the scale that W has."""
    if layer.gain is not None:
        wide = layer.weight.to(torch.promote_types(layer.weight.dtype, torch.float32)).flatten(1)
        squares = wide.var(1, correction=0) * wide.shape[1]
        layer.gain.copy_(squares.clamp_min(_LEAST).sqrt() / layer.scale)


# By the scalar layer, the last base of each.
_STANDARDIZED: dict[type[nn.Module], type[ScaledStd]] = {
    kind.__bases__[-1]: kind for kind in (ScaledStdConv1d, ScaledStdConv2d, ScaledStdConv3d, ScaledStdLinear)
}


def scaled_std(layer: nn.Module) -> ScaledStd:
    """Standardize the weight of a layer, with gain and scale 1 and the same parameters, parts, hooks and mode.

    A standardized layer is returned unchanged.

    Raises:
        UnsupportedEditError: the layer is of another type, or each output reads a single value.
    """
    if isinstance(layer, ScaledStd):
        return layer
    scalar = scalar_affine(layer)
    if scalar.weight[0].numel() < 2:
        raise UnsupportedEditError(
            f"each output reads one value, and a single weight less its mean is zero, in a {class_name(layer)}"
        )
    kind = _STANDARDIZED.get(type(scalar))
    if kind is None:
        raise UnsupportedEditError(
            f"weights are standardized in convolutions and linear layers, not in a {class_name(layer)}"
        )
    return of_class(scalar, kind)
