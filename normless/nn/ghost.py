"""Ghost batch normalization: statistics over small parts of a batch (De & Smith, appendix A; Hoffer et al. 2017)."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from normless.nn.channels import move_running_statistics


class _GhostBatchNorm(_BatchNorm):
    """Batch normalization whose statistics come from ghost batches of at most `ghost_size` examples.

    In training a batch of B examples is cut into ⌈B / ghost_size⌉ ghost batches, equal where that divides
    and differing by one example where it does not; each is normalized by its own biased variance. The running
    statistics take one step per batch, towards the mean of the ghost batches' means and unbiased variances.
    Evaluation is that of torch's layer. Shapes: (B, C, …) to the same.
    """

    def __init__(self, num_features: int, ghost_size: int = 64, **kwargs: Any) -> None:
        if ghost_size < 1:
            raise ValueError(f"A ghost batch holds at least one example, got ghost_size={ghost_size}.")
        super().__init__(num_features, **kwargs)
        self.ghost_size = ghost_size

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every ghost batch by its own statistics."""
        if not self.training or x.shape[0] <= self.ghost_size:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        ghosts = x.tensor_split(ceil(x.shape[0] / self.ghost_size))
        # With momentum 1 torch's kernel hands back each ghost batch's own statistics.
        kept = next((own.dtype for own in (self.weight, self.running_mean) if own is not None), x.dtype)
        means = x.new_zeros(len(ghosts), self.num_features, dtype=kept)
        variances = x.new_ones(len(ghosts), self.num_features, dtype=kept)
        outputs = [
            F.batch_norm(ghost, means[index], variances[index], self.weight, self.bias, True, 1.0, self.eps)
            for index, ghost in enumerate(ghosts)
        ]
        move_running_statistics(self, means.mean(0), variances.mean(0))
        return torch.cat(outputs)

    def extra_repr(self) -> str:
        """Torch's own text and the ghost batch size."""
        text = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{text}, ghost_size={self.ghost_size}"


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """Ghost batch normalization of (B, C) or (B, C, T); see the module's base for what it computes."""


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    """Ghost batch normalization of (B, C, H, W); see the module's base for what it computes."""
