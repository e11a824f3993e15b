"""Fixed affine maps per channel, as of a batch norm with fixed statistics."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from normless.nn.channels import per_channel, scale_and_shift


class FrozenAffine(nn.Module):
    """A constant factor and shift per channel, then the activation and dropout of a fused norm.

        y_c = rest(scale_c · x_c + shift_c)

    It takes one pass over x, of which backward needs no copy, and is the same in training and evaluation.
    Shapes: (B, C) or (B, C, …) in any memory format to the same; x keeps its dtype.

    `scale` and `shift`, shape (C,), are buffers; `rest` are the modules applied afterwards, in order, by name.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, rest: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        for name, module in (rest or {}).items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast x may have a lower precision than the buffers, and keeps it, as in a batch norm.
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        y = torch.addcmul(per_channel(shift, x), x, per_channel(scale, x))
        for module in self.children():
            y = module(y)
        return y

    def extra_repr(self) -> str:
        return str(self.scale.numel())


class ChannelAffine(FrozenAffine):
    """A learned factor and shift per channel: a `FrozenAffine` whose `scale` and `shift` are parameters.

    It stands in place of a batch norm whose statistics became part of them, in training and evaluation.
    """

    def __init__(self, scale: Tensor, shift: Tensor, rest: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__(scale, shift, rest)
        for name in ("scale", "shift"):
            value = self._buffers.pop(name)
            self.register_parameter(name, None if value is None else nn.Parameter(value))


class FrozenLayerNorm(FrozenAffine):
    """A layer or RMS norm with a constant instead of the standard deviation, in training and evaluation.

        y = rest(scale ⊙ (x − mean(x)) + shift),   scale = γ / c,   shift = β

    without the mean if it is not `centred`. The mean is over C. Shapes: (…, C) to the same, or (B, C, …) with
    `channels_first`. `scale` and `shift` have shape (C,), no axes, or those of the last axes of x. x keeps its dtype.
    """

    def __init__(
        self,
        scale: Tensor,
        shift: Tensor,
        rest: Mapping[str, nn.Module] | None = None,
        *,
        centred: bool = True,
        channels_first: bool = False,
    ) -> None:
        super().__init__(scale, shift, rest)
        self.centred, self.channels_first = centred, channels_first

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = (self._broadcast(part.to(x.dtype), x) for part in (self.scale, self.shift))
        if self.centred:
            x = x - x.mean(1 if self.channels_first else -1, keepdim=True)
        y = torch.addcmul(shift, x, scale)
        for module in self.children():
            y = module(y)
        return y

    def _broadcast(self, values: Tensor, x: Tensor) -> Tensor:
        return per_channel(values, x) if self.channels_first and values.dim() else values

    def extra_repr(self) -> str:
        return f"{tuple(self.scale.shape)}{', centred' if self.centred else ''}"


class FrozenBatchNorm(nn.Module):
    """A batch norm with fixed statistics, γ and β, in training and evaluation (Detectron's frozen norm).

        y_c = γ_c / √(σ²_c + ε) · (x_c − μ_c) + β_c

    All four are buffers with the names of torchvision and Detectron2. The scheme `plain_batch_norm` converts the
    layer to torch's batch norm. Shapes: (B, C) or (B, C, …) to the same; x keeps its dtype.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        for name, start in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((num_features,), start))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        scale, shift = scale_and_shift(mean, variance, self.eps, self.weight, self.bias, like=mean)
        return torch.addcmul(per_channel(shift.to(x.dtype), x), x, per_channel(scale.to(x.dtype), x))

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"
