"""Batch normalization with statistics from every other batch (Bjorck et al., section 3.4 and appendix J)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.nn.channels import batch_statistics, move_running_statistics, per_channel


class _AlternatingBatchNorm(_BatchNorm):
    """Batch normalization that computes μ and σ² on every other training batch and reuses them on the next.

    On the 1st, 3rd, … training batch it is batch normalization, gradients through the statistics included,
    and stores μ and the biased σ². On the 2nd, 4th, … it normalizes with the stored values, which are
    constants there, and the running statistics do not move. Evaluation is that of torch's layer.
    Shapes: (B, C, …) to the same.
    """

    latest_mean: Tensor
    latest_variance: Tensor
    reuse_next: Tensor

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        factory = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
        self.register_buffer("latest_mean", torch.zeros(num_features, **factory))
        self.register_buffer("latest_variance", torch.ones(num_features, **factory))
        self.register_buffer("reuse_next", torch.tensor(False, device=factory.get("device")))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by fresh or by stored statistics, in turn."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        # Both cases without a branch on data, so that the layer can be exported and needs no device sync.
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        fresh_mean, fresh_variance = batch_statistics(y)
        reuse = self.reuse_next.clone()
        mean = torch.where(reuse, self.latest_mean, fresh_mean)
        variance = torch.where(reuse, self.latest_variance, fresh_variance)
        self._store(mean.detach(), variance.detach(), ~reuse, x.numel() // x.shape[1])
        scale = (variance + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        return (y * per_channel(scale, y) + per_channel(shift, y)).to(x.dtype)

    @torch.no_grad()
    def _store(self, mean: Tensor, variance: Tensor, fresh: Tensor, count: int) -> None:
        """Keep the statistics in use; move the running ones (unbiased variance, as torch does) if they are new."""
        self.latest_mean.copy_(mean)
        self.latest_variance.copy_(variance)
        self.reuse_next.copy_(fresh)
        unbiased = variance * (count / max(count - 1, 1))
        move_running_statistics(self, mean, unbiased, moved=fresh)


class AlternatingBatchNorm1d(_AlternatingBatchNorm, nn.BatchNorm1d):
    """Alternating batch normalization of (B, C) or (B, C, T); see the module's base for what it computes."""


class AlternatingBatchNorm2d(_AlternatingBatchNorm, nn.BatchNorm2d):
    """Alternating batch normalization of (B, C, H, W); see the module's base for what it computes."""
