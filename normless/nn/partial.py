"""Batch normalization with any subset of its parts (Bjorck et al., equation 1 and appendix H)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from normless.nn.channels import batch_statistics, per_channel


class _PartialBatchNorm(_BatchNorm):
    """Batch normalization that uses only some of μ, σ², γ and β.

    Per channel, over the batch and all positions,

        y = γ · (x − μ) / √(σ² + ε) + β

    without the parts switched off: no μ is subtracted with `mean=False`, nothing is divided with
    `variance=False`, γ and β are absent with `gamma=False` and `beta=False`. σ² is the biased variance about
    the mean, also where the mean is not subtracted. Running averages serve evaluation, as in torch's layer.
    Shapes: (B, C, …) to the same.
    """

    def __init__(
        self,
        num_features: int,
        *,
        mean: bool = True,
        variance: bool = True,
        gamma: bool = True,
        beta: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_features, **{**kwargs, "affine": True})
        self.use_mean = mean
        self.use_variance = variance
        if not gamma:
            self.register_parameter("weight", None)
        if not beta:
            self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the parts in use; in float32 at least, as torch's layer does."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.use_mean or self.use_variance:
            mean, variance = self._statistics(y)
            if self.use_mean:
                y = y - per_channel(mean, y)
            if self.use_variance:
                y = y * per_channel((variance + self.eps).rsqrt(), y)
        if self.weight is not None:
            y = y * per_channel(self.weight, y)
        if self.bias is not None:
            y = y + per_channel(self.bias, y)
        return y.to(x.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel, shape (C,): of the batch in training, else the running ones."""
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        if self.training and self.running_mean is not None:
            # Torch's own kernel moves the running statistics, bit for bit as it does there; its output is not used.
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                F.batch_norm(x, self.running_mean, self.running_var, None, None, True, momentum, self.eps)
        return batch_statistics(x)

    def extra_repr(self) -> str:
        """Torch's own text and the parts in use."""
        parts = (("μ", self.use_mean), ("σ²", self.use_variance), ("γ", self.weight), ("β", self.bias))
        used = "{" + ", ".join(name for name, part in parts if part is not None and part is not False) + "}"
        text = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{text}, parts={used}"


class PartialBatchNorm1d(_PartialBatchNorm, nn.BatchNorm1d):
    """Partial batch normalization of (B, C) or (B, C, T); see the module's base for what it computes."""


class PartialBatchNorm2d(_PartialBatchNorm, nn.BatchNorm2d):
    """Partial batch normalization of (B, C, H, W); see the module's base for what it computes."""
