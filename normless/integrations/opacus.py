"""Differentially private training of converted networks with Opacus.

DP-SGD clips the gradient of every single example. Opacus computes these gradients from each layer's input and its
output's gradient. Importing this module registers the gradients of scalar layers, which Opacus' fallback computes in
twice the time, and of residual sums, where it fails; `prepare` removes the operations in place that its hooks forbid.

A scalar layer is y = W̃ ∗ (x + b₁) + b̃ with the weight W̃ and the bias b̃ that its `folded` computes. Opacus computes
each example's gradients G by W̃ and g by b̃ as for a torch layer; what is left is the chain rule through `folded`.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar, cast

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless.arguments import forward_arguments
from normless.edits import Surgery
from normless.errors import UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.nn.affine import ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear
from normless.residual import residual_map

Model = TypeVar("Model", bound=nn.Module)
Gradients = dict[Tensor, Tensor]


def prepare(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> Model:
    """A copy of a residual network in which no activation and no residual sum works in place.

    torch forbids writing in place on the output of a layer that carries Opacus' hooks. torchvision's blocks do so
    (`out += identity`, `ReLU(inplace=True)`), whether normless took their norms out or Opacus' `ModuleValidator.fix`
    replaced them. Function and parameters stay the same. What else works in place stays; torch refuses it by itself.

    Args:
        model: a residual network, converted or not; it is left as it is.
        inputs, kwargs: example inputs, by position and by name, by which its forward code is read.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple or a dictionary.

    Raises:
        UnresolvedStructureError: its residual structure could not be read.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    surgery = Surgery(deepcopy(model), residual_map(model, *inputs, **kwargs), inputs, kwargs)
    for layer in surgery.map.layers():
        with suppress(UnsupportedEditError):
            surgery.not_in_place(layer)
    for block in surgery.map.walk():
        with suppress(UnsupportedEditError):
            surgery.sums(block)
    assert isinstance(surgery.model, type(model))
    return surgery.model


def scalar_layer_gradients(layer: ScalarAffine, activations: list[Tensor], backprops: Tensor) -> Gradients:
    """Per-example gradients of a scalar layer, W̃ = αsW and b̃ = αsb + b₂ (multiplier α, layer scale s).

    With an example's gradients G by W̃ and g by b̃, for every output channel o

        ∂W = αs·G,  ∂b = αs·g,  ∂s_o = α(⟨G_o, W_o⟩ + g_o b_o),  ∂α = Σ_o s_o(⟨G_o, W_o⟩ + g_o b_o),  ∂b₂ = Σ_o g_o

    Args are those of Opacus: the layer, its one input (B, …), the gradient of each example's own loss by its output.
    Returned is a tensor (B, *p.shape) for each parameter p of the layer itself.
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
    It is factor · b · ⟨backprops, branch⟩ over each example, shape (B, 1), or over each of its channels, (B, C).
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
        samples = GradSampleModule.GRAD_SAMPLERS[type(plain)](plain, [x], backprops)
        gradients: Gradients = {}
        if layer.input_bias is not None:
            # b₁ moves the outputs as an input of ones does.
            response = plain.forward(x.new_ones((1, *x.shape[1:])))
            if plain.bias is not None:
                response -= plain.forward(x.new_zeros((1, *x.shape[1:])))
            gradients[layer.input_bias] = (backprops * response).flatten(1).sum(1, keepdim=True)
    return samples[plain.weight], None if plain.bias is None else samples[plain.bias], gradients


def _refuse_dropout(layer: ScalarAffine) -> None:
    """Raise where the layer's input depends on a draw that the sampler would have to repeat."""
    if layer.before is not None and any(isinstance(one, _DropoutNd) and one.p for one in layer.before.modules()):
        raise NotImplementedError(
            f"Per-example gradients of a {type(layer).__name__} with dropout before it need what the dropout drew, "
            "which Opacus does not keep. Convert without that dropout, as in zeroinit(dropout=0)."
        )


def _plain(layer: ScalarAffine, x: Tensor) -> tuple[Any, Tensor]:
    """The torch layer with the folded weight and bias, and its input, padded if not by zeros as Opacus assumes."""
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


register_grad_sampler([ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear])(scalar_layer_gradients)
register_grad_sampler(ResidualSum)(sum_gradients)
