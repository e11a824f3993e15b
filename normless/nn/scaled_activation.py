"""An activation of a scaled input, φ(s·x)."""

from __future__ import annotations

from torch import Tensor, nn

from normless.nn.activation import ShiftedActivation


class ScaledActivation(ShiftedActivation):
    """An activation φ of the input times a constant s: y = φ(s·x + b₁) + b₂, of the shape of x.

    For activations that s cannot be moved behind, as all but ReLU and its kin, whose φ(s·x) is s·φ(x).

    Attributes:
        scale: s.
        activation, input_bias, output_bias: φ, b₁ and b₂ of `ShiftedActivation`.
    """

    def __init__(self, activation: nn.Module, scale: float) -> None:
        super().__init__(activation)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Scale, then apply φ between its biases."""
        return super().forward(x * self.scale)

    def extra_repr(self) -> str:
        """The constant."""
        return f"scale={self.scale:.4g}"
