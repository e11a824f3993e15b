"""An affine map per channel folded into the weights of the layer before or after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


@torch.no_grad()
def fold_into_output(layer: _ConvNd | nn.Linear, scale: Tensor, shift: Tensor) -> None:
    """Make a layer compute scale · layer(x) + shift, one factor and shift per output channel.

        W_o ← scale_o · W_o,   b_o ← scale_o · b_o + shift_o

    `scale` and `shift` have shape (out,) and are in float64. The layer gets a bias if it has none.
    """
    weight = layer.weight
    grouped = _by_channel(layer)
    if isinstance(layer, _ConvTransposeNd):  # (groups, in / groups, out / groups, …)
        factors = scale.reshape(grouped.shape[0], 1, -1, 1)
    else:  # (groups, out / groups, in / groups, …)
        factors = scale.reshape(grouped.shape[0], -1, 1, 1)
    weight.copy_((grouped * factors).reshape(weight.shape))
    _set_bias(layer, _bias(layer, scale) * scale + shift)


@torch.no_grad()
def fold_into_input(layer: _ConvNd | nn.Linear, scale: Tensor, shift: Tensor) -> None:
    """Make a layer compute layer(scale · x + shift), one factor and shift per input channel.

        W_oi ← W_oi · scale_i,   b_o ← b_o + Σ_i,k W_oik · shift_i

    which is exact where every output sees a whole kernel of inputs: without padding, or without a shift. `scale` and
    `shift` have shape (in,) and are in float64; the shift of a transposed convolution is 0.
    """
    weight = layer.weight
    grouped = _by_channel(layer)
    if isinstance(layer, _ConvTransposeNd):
        assert not shift.any(), "a transposed convolution takes no shift at its input"
        factors = scale.reshape(grouped.shape[0], -1, 1, 1)
    else:
        moved = (grouped * shift.reshape(grouped.shape[0], 1, -1, 1)).sum((2, 3)).flatten()
        factors = scale.reshape(grouped.shape[0], 1, -1, 1)
        _set_bias(layer, _bias(layer, scale) + moved)
    weight.copy_((grouped * factors).reshape(weight.shape))


def _by_channel(layer: _ConvNd | nn.Linear) -> Tensor:
    """The weight in float64 as (groups, first channels, second channels, positions of the kernel)."""
    weight = layer.weight.double()
    if isinstance(layer, nn.Linear):
        return weight[None, :, :, None]
    return weight.reshape(layer.groups, weight.shape[0] // layer.groups, weight.shape[1], -1)


def _bias(layer: _ConvNd | nn.Linear, like: Tensor) -> Tensor:
    return like.new_zeros(()) if layer.bias is None else layer.bias.double()


def _set_bias(layer: _ConvNd | nn.Linear, value: Tensor) -> None:
    if layer.bias is not None:
        layer.bias.copy_(value)
    elif value.any():
        layer.bias = nn.Parameter(value.to(layer.weight), requires_grad=layer.weight.requires_grad)
