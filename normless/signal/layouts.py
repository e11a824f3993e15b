"""Layouts of activations: between the output of one layer and the input of the next, and windows of poolings."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.signal.moments import Moments


def fitted(moments: Moments, shape: torch.Size) -> Moments | None:
    """Moments, shape (1, …), in the layout of a batch (B, …) of the same values; None where there is no such layout.

    Channels move after the positions or before them, positions or all axes are flattened, axes of length 1 are added.
    """
    have, wanted = moments.mean, tuple(shape[1:])
    changes: list[Callable[[Tensor], Tensor]] = [lambda x: x]
    if have.dim() > 2:
        changes += [lambda x: x.movedim(1, -1), lambda x: x.movedim(-1, 1), lambda x: x.flatten(2).transpose(1, 2)]
    if len(wanted) == 1:
        changes.append(lambda x: x.flatten(1))
    if [side for side in wanted if side > 1] == [side for side in have.shape[1:] if side > 1]:
        changes.append(lambda x: x.reshape(1, *wanted))
    for change in changes:
        if tuple(change(have).shape[1:]) == wanted:
            return moments.reshaped(change)
    return None


def placed(x: Moments, shape: tuple[int, ...] | None) -> Moments | None:
    """Moments in the layout of a traced shape, whose positions may be of another number; None where none fits."""
    if shape is None:
        return x
    have = x.mean.shape
    return fitted(x, torch.Size(shape)) or (x if len(have) == len(shape) and have[1] == shape[1] else None)


def broadcast(factor: Moments, shape: torch.Size) -> Moments | None:
    """A factor in a layout that broadcasts over (1, C, …): as it is, or one for each channel."""
    have = factor.mean.shape
    if len(have) == len(shape) and all(one in (1, other) for one, other in zip(have, shape, strict=True)):
        return factor
    return fitted(factor, torch.Size((1, shape[1], *[1] * (len(shape) - 2))))


def per_axis(values: Tensor, shape: torch.Size) -> Tensor | None:
    """Factors shaped to broadcast over (B, C, …) or (B, …, C): one, one per channel, or of a shape that broadcasts.

    None where they match no axis.
    """
    if values.numel() == 1:
        return values.reshape([1] * len(shape))
    if values.dim() > 1:
        sides = zip(reversed(values.shape), reversed(shape), strict=False)
        return values if values.dim() <= len(shape) and all(one in (1, other) for one, other in sides) else None
    for axis in (1, len(shape) - 1):
        if shape[axis] == values.numel():
            return values.reshape([-1 if index == axis else 1 for index in range(len(shape))])
    return None


def window_size(pool: nn.Module) -> int:
    """The number of elements in a window of a max or average pooling."""
    kernel: Any = pool.kernel_size
    axes = next(n for n in (1, 2, 3) if isinstance(pool, (getattr(nn, f"MaxPool{n}d"), getattr(nn, f"AvgPool{n}d"))))
    return prod(kernel) if isinstance(kernel, tuple) else int(kernel) ** axes


def window_average(pool: nn.Module, x: Tensor, *, padded: bool = False) -> Tensor:
    """The average over the windows of a max pooling, over the padding too where `padded`; x of shape (1, C, …)."""
    average = getattr(F, f"avg_pool{x.dim() - 2}d")
    y: Tensor = average(x, pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, padded)
    return y


def window_counts(pool: nn.Module, x: Tensor) -> Tensor:
    """The number of elements in every window of a max pooling, padding not counted; broadcasts over its output."""
    return (window_average(pool, torch.ones_like(x[:, :1]), padded=True) * window_size(pool)).round().clamp_min(1)
