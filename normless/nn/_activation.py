"""Activations between scalar biases, φ(x + b₁) + b₂ or φ(s·x + b₁) + b₂; γ·φ(αx + s) + β instead of norms."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn

from normless.nn._affine import TakesParts, one_element
from normless.nn._channels import per_channel
from normless.nn._memory_order import MemoryFormat, in_order
from normless.nn.kernels import shifted, shifted_relu, unpromoting


class ShiftedActivation(TakesParts):
    """An elementwise activation φ with scalar biases around it: y = φ(x + b₁) + b₂, of the shape of x.

    b₁ is Fixup's bias before an activation that reads no weight layer of its own, b₂ its bias before the layer that
    reads the activation (Zhang et al., section 3, rule 3). A ReLU before b₂ is one function if that is faster.

    Attributes:
        activation: φ.
        input_bias, output_bias: b₁ and b₂, one element each, or None.
    """

    PARTS = ("input_bias", "output_bias")

    output_bias: Tensor | None

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def add_part(self, name: str, value: Tensor) -> None:
        """Add `input_bias` or `output_bias`, zero, with the dtype and device of `value`."""
        super().add_part(name, value.new_zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.input_bias, self.output_bias)
        has_parts = parts[0] is not None or parts[1] is not None
        is_relu = type(self.activation) is nn.ReLU and has_parts and not _is_watched(self.activation)
        if is_relu and (fast := shifted_relu(x, *parts)) is not None:
            return fast
        return shifted(cast(Tensor, self.activation(shifted(x, self.input_bias))), self.output_bias)


def _is_watched(module: nn.Module) -> bool:
    """Whether a module carries hooks, which only a call of it runs."""
    return any(getattr(module, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre"))


class ScaledActivation(ShiftedActivation):
    """An activation φ of the input times a constant s: y = φ(s·x + b₁) + b₂, of the shape of x."""

    def __init__(self, activation: nn.Module, scale: float) -> None:
        super().__init__(activation)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}"


class Pointwise(nn.Module):
    """Compute γ·φ(αx + s) + β, φ tanh (DyT, Zhu et al. 2025, section 4) or erf (Derf, Chen et al. 2025).

    Attributes:
        alpha: α, one element.
        shift: s, one element, or None.
        weight, bias: γ and β, or None; vectors along the second axis of x if `channels_first`, else its last axes.
        order: the order of the output's elements in memory; None is that of the input.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, function: Literal["tanh", "erf"], alpha: float, shift: float | None = None) -> None:
        super().__init__()
        self.function, self.channels_first = function, False
        self.order: MemoryFormat | None = None
        self.alpha = nn.Parameter(one_element(alpha))
        self.shift = None if shift is None else nn.Parameter(one_element(shift))
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        y = in_order(x, self.order) * unpromoting(self.alpha, x)
        y = y if self.shift is None else y + unpromoting(self.shift, x)
        y = torch.tanh(y) if self.function == "tanh" else torch.erf(y)
        y = y if self.weight is None else y * self.placed(self.weight, y)
        return y if self.bias is None else y + self.placed(self.bias, y)

    def placed(self, values: Tensor, x: Tensor) -> Tensor:
        """Reshape γ or β to broadcast over x, with the dtype of x."""
        return (per_channel(values, x) if self.channels_first else values).to(x.dtype)
