"""Activations as a matrix of channels."""

from __future__ import annotations

from torch import Tensor, nn

from normless.nn.channels import channel_axis as channel_axis


def by_channel(module: nn.Module, x: Tensor) -> Tensor:
    """The input or output x of a layer, shape (B, C, …) or (B, …, C), as a matrix (C, N)."""
    return x.movedim(channel_axis(module, x), 0).flatten(1)
