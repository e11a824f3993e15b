"""The order of a tensor's elements in memory, in which some norms always return their output."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

MemoryFormat = Literal["contiguous", "channels_last", "channels_last_3d"]


def in_order(x: Tensor, order: MemoryFormat | None) -> Tensor:
    """Return x with its elements in the given order in memory; x itself if it has this order, or if `order` is None.

    `channels_last` is an order of tensors with four axes, (B, C, H, W), and `channels_last_3d` of those with five.
    Tensors with another number of axes are returned as they are.
    """
    if order == "contiguous":
        return x.contiguous()
    if order == "channels_last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if order == "channels_last_3d" and x.dim() == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    return x


def order_of(x: Tensor) -> MemoryFormat | None:
    """Return the order of x's elements in memory: the first that fits, or None."""
    if x.is_contiguous():
        return "contiguous"
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last_3d"
    return None


class MemoryOrder(nn.Identity):
    """Return the input unchanged, with its elements in a fixed order in memory.

    It replaces a norm that returned this order. The layers after it are as fast as they were: a linear layer that
    reads a permuted tensor, as in ConvNeXt, copies it several times in a training step.

    Attributes:
        order: `contiguous`, `channels_last` (B, C, H, W) or `channels_last_3d` (B, C, D, H, W).
    """

    def __init__(self, order: MemoryFormat) -> None:
        super().__init__()
        self.order: MemoryFormat = order

    def forward(self, x: Tensor) -> Tensor:
        return in_order(x, self.order)

    def extra_repr(self) -> str:
        return self.order
