"""Norms with fixed statistics: the affine map that they compute, and Detectron's frozen batch norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from normless.nn._channels import per_channel, scale_and_shift


class FrozenAffine(nn.Module):
    """The affine map of a norm with fixed statistics, then the other modules of the norm.

        y = rest(scale ⊙ P x + shift)

    P subtracts the mean over the channels if the map is `centred`, as of a layer norm with a constant divisor, and is
    the identity otherwise, as of a batch norm with running statistics. Training and evaluation are the same. Without
    P it takes one pass over x, of which backward needs no copy. Shapes: (B, C) or (B, C, …) in any memory format, or
    (…, C) with `channels_last`, to the same; x keeps its dtype.

    Args:
        scale, shift: shape (C,), no axes, or with `channels_last` those of the last axes of x; buffers.
        rest: the modules that are applied afterwards, in order, by name, such as the activation of a fused norm.
        centred: whether P subtracts the mean.
        channels_last: whether the channels are the last axis.
        learned: whether `scale` and `shift` are parameters.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        scale: Tensor,
        shift: Tensor,
        rest: Mapping[str, nn.Module] | None = None,
        *,
        centred: bool = False,
        channels_last: bool = False,
        learned: bool = False,
    ) -> None:
        super().__init__()
        self.centred, self.channels_last, self.learned = centred, channels_last, learned
        for name, value in (("scale", scale), ("shift", shift)):
            if learned:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        for name, module in (rest or {}).items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast x may have a lower precision than the buffers, and keeps it, as in a batch norm.
        scale, shift = (self._broadcast(part.to(x.dtype), x) for part in (self.scale, self.shift))
        if self.centred:
            x = x - x.mean(-1 if self.channels_last else 1, keepdim=True)
        y = torch.addcmul(shift, x, scale)
        for module in self.children():
            y = module(y)
        return y

    def _broadcast(self, values: Tensor, x: Tensor) -> Tensor:
        return values if self.channels_last or not values.dim() else per_channel(values, x)

    def extra_repr(self) -> str:
        facts = [name for name in ("centred", "channels_last", "learned") if getattr(self, name)]
        return ", ".join([str(tuple(self.scale.shape)), *facts])


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
