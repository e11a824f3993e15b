"""Single operations of torch as modules that moments are passed through."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn


class TorchOperation(nn.Module):
    """An operation of forward code, with its arguments after the tensor.

    Args:
        name: of torch's operation.
        arguments: those that are no tensors.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.name = name
        self.arguments = arguments

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        function = getattr(torch.ops.aten, self.name)
        try:
            y: Tensor = function(x, *self.arguments)
        except (RuntimeError, TypeError):
            # A keyword-only argument, such as that of GELU.
            y = function(x)
        return y

    def extra_repr(self) -> str:
        """What it applies."""
        return f"{self.name}, {self.arguments}"


class Windows(nn.Module):
    """The average over the windows of a pooling.

    Args:
        kernel, stride, padding: one number for each axis.
        ceil: whether windows that reach beyond the end are kept.
        padded: whether the zeros of the padding are averaged over too.
    """

    def __init__(
        self, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], ceil: bool, padded: bool
    ) -> None:
        super().__init__()
        self.pool = getattr(torch.ops.aten, f"avg_pool{len(kernel)}d")
        self.geometry = (kernel, stride, padding, ceil)
        self.padded = padded
        self.size = prod(kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Average: (B, C, …) to the shape of the pooling's output."""
        y: Tensor = self.pool(x, *self.geometry, self.padded)
        return y

    def counts(self, x: Tensor) -> Tensor:
        """The number of elements in every window, padding not counted, of a shape that broadcasts over the output."""
        share: Tensor = self.pool(torch.ones_like(x[:, :1]), *self.geometry, True)
        return (share * self.size).round().clamp_min(1)


def windows_of(
    kernel: Any, stride: Any, padding: Any, ceil: Any, axes: int, *, dilation: Any = 1, padded: bool = False
) -> Windows | None:
    """The windows of a pooling over so many axes; None where they are dilated."""
    kernel = each(kernel, axes)
    if any(step != 1 for step in each(dilation, axes)):
        return None
    return Windows(kernel, each(stride, axes) if stride else kernel, each(padding, axes), bool(ceil), padded)


def each(sizes: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    numbers = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return numbers * axes if len(numbers) == 1 else numbers
