"""Layers with numbers instead of scalar parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.nn.in_place import InPlace


class ConstantConvolution(nn.Module):
    """Compute W ∗ x + c of zero-padded x with c = W ∗ (b₁·1) + b, which is cached for each size of input.

    Shapes and options are those of `plain`, the convolution without b, shape (out,).
    """

    def __init__(self, plain: _ConvNd, shift: float, bias: Tensor | None) -> None:
        super().__init__()
        self.plain, self.shift = plain, shift
        bias = plain.weight.new_zeros(len(plain.weight)) if bias is None else bias
        self.bias = nn.Parameter(bias.detach(), requires_grad=False)
        self._constants: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return W ∗ x + c."""
        y: Tensor = self.plain(x)
        size = x.shape[1 - self.plain.weight.dim() :]
        key = (size, y.dtype, y.device)
        constant = None if torch.compiler.is_compiling() else self._constants.get(key)
        if constant is None:
            whole = torch.full((1, *size), self.shift, dtype=x.dtype, device=x.device)
            constant = (self.plain(whole)[0] + self.bias.reshape(-1, *[1] * (len(size) - 1))).to(y.dtype)
            if not torch.compiler.is_compiling():
                self._constants[key] = constant
        # No other module has seen y.
        return y.add_(constant)


class ConstantActivation(InPlace, nn.Module):
    """Compute φ(s·x + b₁) + b₂ with three numbers; a ReLU as max(s·x + (b₁ + b₂), b₂)."""

    def __init__(self, activation: nn.Module, scale: float, before: float, after: float) -> None:
        super().__init__()
        self.activation, self.scale, self.before, self.after = activation, scale, before, after

    def move_shift(self, layer: Any) -> None:
        """Move the shift of a ReLU to the bias of the layer that computes x, shape (B, out, …), if possible."""
        if type(self.activation) is nn.ReLU and self.scale == 1 and type(layer) in _TAKE_SHIFT:
            weight: Tensor = next(layer.parameters())
            bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
            # A new parameter, since layers may share their bias.
            layer.bias = nn.Parameter(bias + (self.before + self.after), requires_grad=False)
            self.before = -self.after

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x."""
        is_own, is_relu = self.inplace, type(self.activation) is nn.ReLU
        shift = self.before + self.after if is_relu else self.before
        if self.scale != 1:
            x, is_own = (x.mul_(self.scale) if is_own else x * self.scale), True
        if shift:
            x, is_own = (x.add_(shift) if is_own else x + shift), True
        if is_relu:
            return x.clamp_(min=self.after) if is_own else x.clamp(min=self.after)
        y: Tensor = self.activation(x)
        return y + self.after if self.after else y


_TAKE_SHIFT = {ConstantConvolution, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear}
