"""An activation between two scalar biases, φ(x + b₁) + b₂."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from normless.errors import UnsupportedEdit
from normless.nn.affine import one_element


class ShiftedActivation(nn.Module):
    """An elementwise activation φ with scalar biases around it: y = φ(x + b₁) + b₂, of the shape of x.

    For ReLU the two biases cost one extra pass at most: relu(x + b₁) + b₂ = max(x + (b₁ + b₂), b₂), so b₂ is
    the threshold. Fixup's bias before a convolution that reads an activation is this b₂ (Zhang et al.,
    section 3, rule 3).

    Attributes:
        activation: φ.
        input_bias, output_bias: b₁ and b₂, one element each, or None.
    """

    input_bias: Tensor | None
    output_bias: Tensor | None

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.register_parameter("input_bias", None)
        self.register_parameter("output_bias", None)

    def add_part(self, name: str, like: Tensor) -> None:
        """Add `input_bias` or `output_bias`, zero, with the dtype and device of `like`.

        Raises:
            UnsupportedEdit: the activation has that bias already.
        """
        if getattr(self, name) is not None:
            raise UnsupportedEdit(f"the activation already has an {name.replace('_', ' ')}")
        self.register_parameter(name, nn.Parameter(one_element(0.0).to(like)))

    def forward(self, x: Tensor) -> Tensor:
        """Apply φ between its biases."""
        if isinstance(self.activation, nn.ReLU):
            return shifted_relu(x, self.input_bias, self.output_bias)
        if self.input_bias is not None:
            x = x + self.input_bias
        y = cast(Tensor, self.activation(x))
        return y if self.output_bias is None else y + self.output_bias


def shifted_relu(x: Tensor, input_bias: Tensor | None, output_bias: Tensor | None) -> Tensor:
    """relu(x + b₁) + b₂, of the shape of x; gradients to x and to both biases."""
    if output_bias is None:
        return torch.relu(x if input_bias is None else x + input_bias)
    y = _ThresholdAt.apply(x if input_bias is None else x + input_bias, output_bias)
    return cast(Tensor, y)


class _ThresholdAt(torch.autograd.Function):
    """relu(x) + b in one buffer; backward is torch's kernel for ReLU and one sum.

    `torch.where` in its place takes as long as a convolution on the CPU.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor) -> Tensor:
        return torch.relu(x).add_(bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        output, bias = ctx.saved_tensors
        (gradient,) = gradients
        # output - bias is exactly zero where the ReLU was closed.
        passed = torch.ops.aten.threshold_backward(gradient, output - bias, 0)
        return passed, gradient.sum().reshape(bias.shape)
