"""Activations between two scalar biases, φ(x + b₁) + b₂, and of a scaled input, φ(s·x + b₁) + b₂."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from normless.nn.affine import one_element, register_part


class ShiftedActivation(nn.Module):
    """An elementwise activation φ with scalar biases around it: y = φ(x + b₁) + b₂, of the shape of x.

    b₁ is Fixup's bias before an activation that reads no weight layer of its own, b₂ its bias before the layer that
    reads the activation (Zhang et al., section 3, rule 3). Two additions are faster than the equivalent
    max(c + (b₁ + b₂), b₂) of a ReLU, whose backward pass is slow on the CPU.

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
        """Add `input_bias` or `output_bias`, zero, with the dtype and device of `like`."""
        register_part(self, name, one_element(0.0), like)

    def forward(self, x: Tensor) -> Tensor:
        if self.input_bias is not None:
            x = x + self.input_bias.to(x.dtype)
        y = cast(Tensor, self.activation(x))
        return y if self.output_bias is None else y + self.output_bias.to(y.dtype)


class ScaledActivation(ShiftedActivation):
    """An activation φ of the input times a constant s: y = φ(s·x + b₁) + b₂, of the shape of x."""

    def __init__(self, activation: nn.Module, scale: float) -> None:
        super().__init__(activation)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}"
