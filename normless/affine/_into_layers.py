"""Change the weight and bias of a layer so that it computes the frozen norm before or after it too."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.affine._flow import Neighbour, names_of
from normless.affine._maps import Affine
from normless.nn._affine import is_transposed


@torch.no_grad()
def fold_into(layer: nn.Module, place: Neighbour, affine: Affine) -> None:
    """Make a layer compute norm(layer(x)) if it is `before` the norm, else layer(norm(x)).

    With norm(x) = scale ⊙ P x + shift:

        before:  W ← diag(scale) P W,    b ← scale ⊙ P b + shift
        after:   W ← W diag(scale) P,    b ← b + W shift, summed over a kernel

    If the layer has several rows of features, as for heads, each is normalized. It gets a bias if it has none and
    needs one.
    """
    weight_name, bias_name = names_of(layer)
    weight, bias = getattr(layer, weight_name), getattr(layer, bias_name)
    matrix = weight.double().T if is_transposed(layer) else weight.double()
    groups = layer.groups if isinstance(layer, _ConvNd) else 1
    # (groups, out / groups, in / groups, kernel); of a transposed convolution (groups, in / groups, out, kernel).
    grouped = matrix.reshape(groups, matrix.shape[0] // groups, matrix.shape[1], -1)
    is_reversed = isinstance(layer, _ConvTransposeNd)
    axis = 1 if (place.side == "before") != is_reversed else 2
    rows = grouped.shape[0] * grouped.shape[axis] // place.features
    scale, shift = (part.expand(place.features).repeat(rows) for part in (affine.scale, affine.shift))
    factors = scale.reshape(groups, *(-1 if at == axis else 1 for at in (1, 2, 3)))
    start = scale.new_zeros(()) if bias is None else bias.double()
    if place.side == "before":
        grouped = _centred(grouped, axis, place.features) if affine.centred else grouped
        start = _centred(start, 0, place.features) if affine.centred and start.dim() else start
        moved, grouped = start * scale + shift, grouped * factors
    elif is_reversed:
        assert not shift.any(), "a transposed convolution takes no shift at its input"
        moved, grouped = start, grouped * factors
    else:
        moved = start + (grouped * shift.reshape(factors.shape)).sum((2, 3)).flatten()
        grouped = grouped * factors
        grouped = _centred(grouped, axis, place.features) if affine.centred else grouped
    whole = grouped.reshape(matrix.shape)
    whole = (whole.T if is_transposed(layer) else whole).to(weight)
    if place.is_tied:
        setattr(layer, weight_name, nn.Parameter(whole.contiguous(), requires_grad=weight.requires_grad))
    else:
        weight.copy_(whole)
    if bias is not None:
        bias.copy_(moved)
    elif moved.any():
        setattr(layer, bias_name, nn.Parameter(moved.to(weight), requires_grad=weight.requires_grad))
        if isinstance(layer, nn.MultiheadAttention) and layer.out_proj.bias is None:
            # torch's fused attention needs both biases or neither.
            layer.out_proj.bias = nn.Parameter(torch.zeros_like(weight[0]), requires_grad=weight.requires_grad)


def _centred(values: Tensor, axis: int, features: int) -> Tensor:
    """Subtract the mean of each row of features along an axis."""
    rows = torch.unflatten(values, axis, (-1, features))
    return (rows - rows.mean(axis + 1, keepdim=True)).flatten(axis, axis + 1)
