"""Activations as a matrix of channels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

_FIRST = (_ConvNd, _NormBase, nn.GroupNorm)
_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)


def channel_axis(module: nn.Module, x: Tensor) -> int:
    """The channel axis of a layer's input or output: 1 for images, the last for tokens.

    It is the last for linear layers and layer norms, and 1 for convolutions, batch norms and modules named `…2d`. For
    other layers it is the axis that alone has the length of their `weight`, or else 1.
    """
    first, last = min(1, x.dim() - 1), x.dim() - 1
    if isinstance(module, _FIRST) or type(module).__name__.endswith("2d"):
        return first
    weight = getattr(module, "weight", None)
    length = weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 1 else None
    fits_last_alone = length is not None and x.shape[last] == length != x.shape[first]
    return last if isinstance(module, _LAST) or fits_last_alone else first


def by_channel(module: nn.Module, x: Tensor) -> Tensor:
    """The input or output x of a layer, shape (B, C, …) or (B, …, C), as a matrix (C, N)."""
    return x.movedim(channel_axis(module, x), 0).flatten(1)
