"""Statistics of channels, and vectors of one value per channel."""

from __future__ import annotations

import torch
from torch import Tensor


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """A vector (C,) shaped to broadcast over x of shape (B, C, …)."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel of x, shape (B, C, …), over batch and positions: two (C,).

    Raises:
        ValueError: there is one value per channel, whose variance says nothing.
    """
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}.")
    variance, mean = torch.var_mean(x, dim=[0, *range(2, x.dim())], correction=0)
    return mean, variance
