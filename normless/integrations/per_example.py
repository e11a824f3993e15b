"""Per-example gradients of normless' layers, for Opacus.

A layer is y = W̃ ∗ (x + b₁) + b̃ with the weight W̃ and the bias b̃ that its `folded` computes. Opacus knows each
example's gradients G by W̃ and g by b̃, those of a torch layer; what is left is the chain rule through `folded`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import ResidualSum, ScalarAffine

Gradients = dict[Tensor, Tensor]


def scalar_layer_gradients(layer: ScalarAffine, activations: list[Tensor], backprops: Tensor) -> Gradients:
    """Per-example gradients of a scalar layer, W̃ = αsW and b̃ = αsb + b₂ (multiplier α, layer scale s).

    For every output channel o

        ∂W = αs·G,  ∂b = αs·g,  ∂s_o = α(⟨G_o, W_o⟩ + g_o b_o),  ∂α = Σ_o s_o(⟨G_o, W_o⟩ + g_o b_o),  ∂b₂ = Σ_o g_o

    Args:
        layer: the layer.
        activations: its one input, shape (B, …).
        backprops: the gradient of each example's own loss by the layer's output, shape of that output.

    Returns:
        For each parameter p of the layer itself a tensor (B, *p.shape).

    Raises:
        NotImplementedError: dropout comes before the layer, and what it drew is not known here.
    """
    by_weight, by_bias, gradients = _folded_gradients(layer, activations, backprops)
    weight, bias = layer.weight.detach(), cast(Tensor | None, layer.bias)
    scale, multiplier = layer.layer_scale, layer.multiplier
    if layer.output_bias is not None:
        gradients[layer.output_bias] = cast(Tensor, by_bias).sum(1, keepdim=True)
    if scale is not None or multiplier is not None:
        rows = 1 if scale is None else len(scale)
        products = _row_products(by_weight, weight, rows)
        if bias is not None:
            products += _row_products(cast(Tensor, by_bias), bias.detach(), rows)
        if scale is not None:
            gradients[scale] = products if multiplier is None else products * multiplier.detach()
            products = products * scale.detach()
        if multiplier is not None:
            gradients[multiplier] = products.sum(1, keepdim=True)
    for factor in (scale, multiplier):
        if factor is not None:
            by_weight.mul_(factor.detach().reshape(-1, *[1] * (weight.dim() - 1)))
            if bias is not None:
                # Not in place: for a linear layer it may be a view of backprops.
                by_bias = cast(Tensor, by_bias) * factor.detach()
    gradients[layer.weight] = by_weight
    if bias is not None:
        gradients[bias] = cast(Tensor, by_bias)
    return gradients


def sum_gradients(layer: ResidualSum, activations: list[Tensor], backprops: Tensor) -> Gradients:
    """Per-example gradients of a residual sum's multiplier, total = factor · (s · skip + b · multiplier · branch).

    Args:
        layer: the sum.
        activations: skip path and branch, shape (B, C, …) each.
        backprops: the gradient of each example's own loss by the total, of the same shape.

    Returns:
        For the multiplier factor · b · ⟨backprops, branch⟩, over each example, shape (B, 1), or each of its channels,
        shape (B, C).

    Raises:
        NotImplementedError: a norm after the addition separates it from the gradient that is known.
    """
    if layer.norm_total is not None:
        raise NotImplementedError(
            "Per-example gradients of a residual sum's multiplier need the gradient of the sum itself; this one has "
            "a norm after it. Convert with a scheme that does not combine a multiplier with a norm after the sum."
        )
    multiplier = cast(Tensor, layer.multiplier)
    constant = layer.factor * layer.branch_factor
    products = backprops * activations[1]
    rows = products.reshape(len(products), len(multiplier), products.shape[1:].numel() // len(multiplier))
    return {multiplier: rows.sum(2) * constant}


def _folded_gradients(
    layer: ScalarAffine, activations: list[Tensor], backprops: Tensor
) -> tuple[Tensor, Tensor | None, Gradients]:
    """G, shape (B, *W.shape), g, shape (B, out) or None, and the gradient of b₁ where the layer has it."""
    _refuse_dropout(layer)
    with torch.no_grad():
        plain, x = _plain(layer, layer.prepared(activations[0].to(backprops.dtype)))
        found = GradSampleModule.GRAD_SAMPLERS[type(plain)](plain, [x], backprops)
        gradients: Gradients = {}
        if layer.input_bias is not None:
            # b₁ moves the outputs as an input of ones does.
            response = plain.forward(x.new_ones((1, *x.shape[1:])))
            if plain.bias is not None:
                response -= plain.forward(x.new_zeros((1, *x.shape[1:])))
            gradients[layer.input_bias] = (backprops * response).flatten(1).sum(1, keepdim=True)
    return found[plain.weight], None if plain.bias is None else found[plain.bias], gradients


def _refuse_dropout(layer: ScalarAffine) -> None:
    """Raise where the layer's input depends on a draw that the sampler would have to repeat."""
    if layer.before is not None and any(isinstance(one, _DropoutNd) and one.p for one in layer.before.modules()):
        raise NotImplementedError(
            f"Per-example gradients of a {type(layer).__name__} with dropout before it need what the dropout drew, "
            "which Opacus does not keep. Convert without that dropout, as in zeroinit(dropout=0)."
        )


def _plain(layer: ScalarAffine, x: Tensor) -> tuple[Any, Tensor]:
    """The torch layer that does the same with its folded weight and bias, and the input it does it to.

    Opacus takes all padding for zeros, so any other is done to the input.
    """
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear) if isinstance(layer, kind))
    plain = kind.__new__(kind)
    plain.__dict__.update(layer.__dict__)
    parts = zip(("weight", "bias"), layer.folded(), strict=True)
    parameters = {name: None if part is None else nn.Parameter(part) for name, part in parts}
    plain.__dict__.update(_parameters=parameters, _modules={})
    if isinstance(layer, _ConvNd) and layer.padding_mode != "zeros":
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        plain.padding_mode, plain.padding = "zeros", (0,) * len(layer.kernel_size)
    return plain, x


def _row_products(gradients: Tensor, values: Tensor, rows: int) -> Tensor:
    """⟨gradients, values⟩ over the rest of each row: (B, rows, …) and (rows, …) to (B, rows)."""
    split = gradients.reshape(len(gradients), rows, values.numel() // rows)
    return torch.einsum("brk,rk->br", split, values.reshape(rows, -1))
