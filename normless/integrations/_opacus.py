"""Differentially private training of converted networks with Opacus.

DP-SGD clips the gradient of every single example. Importing this module registers those of scalar layers, which
Opacus' fallback computes in twice the time, and of residual sums, where it fails.

A scalar layer is y = W̃ ∗ (x + b₁) + b̃ with the weight W̃ and the bias b̃ that its `folded` computes. Opacus computes
each example's gradients by W̃ and b̃ as for a torch layer, and autograd those of the parts through `folded`.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import zip_longest
from typing import Any, cast

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from normless._internal.arguments import forward_arguments
from normless._internal.copying import Model, copied
from normless.edits import Surgery
from normless.edits._modules import not_in_place, sums_of
from normless.errors import UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.nn._affine import ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear, of_class
from normless.residual import residual_map

Gradients = dict[Tensor, Tensor]


def prepare(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> Model:
    """Return a copy of a residual network without in-place activations and in-place residual sums.

    torch forbids writing in place on the output of a layer that carries Opacus' hooks, as torchvision's blocks do
    (`out += identity`, `ReLU(inplace=True)`). Function and parameters stay the same. Other operations in place stay
    too, and torch refuses them.

    Args:
        model: a residual network, converted or not; it is unchanged.
        inputs, kwargs, example_inputs: as in `residual_map`.

    Raises:
        UnresolvedStructureError: its residual structure could not be read.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    surgery = Surgery(copied(model), residual_map(model, *inputs, **kwargs), (inputs, dict(kwargs)))
    for layer in surgery.map.layers():
        with suppress(UnsupportedEditError):
            not_in_place(surgery, layer)
    for block in surgery.map.walk():
        with suppress(UnsupportedEditError):
            sums_of(surgery, block)
    assert isinstance(surgery.model, type(model))
    return surgery.model


def scalar_layer_gradients(layer: ScalarAffine, activations: list[Tensor], backprops: Tensor) -> Gradients:
    """Compute the per-example gradients of a scalar layer.

    The arguments are those of Opacus: the layer, its one input (B, …), the gradient of each example's own loss by the
    output. The result has a tensor (B, *p.shape) for each trainable parameter p of the layer itself.
    """
    if layer.before is not None and any(
        isinstance(module, _DropoutNd) and module.p for module in layer.before.modules()
    ):
        raise NotImplementedError(
            f"Per-example gradients of a {type(layer).__name__} with dropout before it need the mask of the dropout, "
            "which Opacus does not keep. Convert without that dropout, as in zeroinit(dropout=0)."
        )
    with torch.enable_grad():
        folded = [part for part in layer.folded() if part is not None]
    with torch.no_grad():
        plain, x = _plain(layer, folded, layer.prepared(activations[0].to(backprops.dtype)))
        samples = GradSampleModule.GRAD_SAMPLERS[type(plain)](plain, [x], backprops)
        gradients: Gradients = {}
        if layer.input_bias is not None:
            # b₁ moves the outputs as an input of ones does.
            response = plain.forward(x.new_ones((1, *x.shape[1:])))
            if plain.bias is not None:
                response -= plain.forward(x.new_zeros((1, *x.shape[1:])))
            gradients[layer.input_bias] = (backprops * response).flatten(1).sum(1, keepdim=True)
    names = ("weight", "bias", "multiplier", "layer_scale", "output_bias")
    parts = [part for name in names if (part := getattr(layer, name)) is not None and part.requires_grad]
    if parts:
        by_folded = zip(folded, (samples[parameter] for parameter in plain.parameters()), strict=True)
        outputs, given = zip(*(pair for pair in by_folded if pair[0].requires_grad), strict=True)
        gradients |= zip(parts, torch.autograd.grad(outputs, parts, given, is_grads_batched=True), strict=True)
    return gradients


def sum_gradients(layer: ResidualSum, activations: list[Tensor], backprops: Tensor) -> Gradients:
    """Compute per-example gradients of the multiplier at a sum, total = factor · (s · skip + b · α · branch).

    They are factor · b · ⟨backprops, branch⟩ over each example, shape (B, 1), or over each of its channels, (B, C).
    """
    if layer.norm_total is not None or layer.norm_branch is not None:
        raise NotImplementedError(
            "Per-example gradients of a residual sum's multiplier need the gradient of the sum itself; this one has "
            "a norm inside. Convert with a scheme that does not combine a multiplier with norms at the sum."
        )
    multiplier = cast(Tensor, layer.multiplier)
    constant = layer.factor * layer.branch_factor
    products = backprops * activations[1]
    rows = products.reshape(len(products), len(multiplier), products.shape[1:].numel() // len(multiplier))
    return {multiplier: rows.sum(2) * constant}


def _plain(layer: ScalarAffine, folded: list[Tensor], x: Tensor) -> tuple[Any, Tensor]:
    """Return the torch layer with the folded weight and bias, and its input, padded unless the padding is zeros."""
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear) if isinstance(layer, kind))
    plain = of_class(layer, kind)
    plain._modules = {}
    plain._parameters = dict(zip_longest(("weight", "bias"), map(nn.Parameter, folded)))
    if isinstance(layer, _ConvNd) and layer.padding_mode != "zeros":
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        plain.padding_mode, plain.padding = "zeros", (0,) * len(layer.kernel_size)
    return plain, x


register_grad_sampler([ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear])(scalar_layer_gradients)
register_grad_sampler(ResidualSum)(sum_gradients)
