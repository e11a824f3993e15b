"""Changes of layout between the output of one layer and the input of the next."""

from __future__ import annotations

import torch
from torch import Tensor

from normless.signal.moments import Moments


def fitted(moments: Moments, shape: torch.Size) -> Moments | None:
    """Moments in the layout of a batch with the same values and another shape; None where there is no such layout.

    Channels move after the positions or before them, positions or all axes are flattened, axes of length 1 are added.

    Args:
        moments: of shape (1, …).
        shape: (B, …).
    """
    wanted = tuple(shape[1:])
    have = moments.mean

    def to_last(x: Tensor) -> Tensor:
        return x.movedim(1, -1)

    def to_first(x: Tensor) -> Tensor:
        return x.movedim(-1, 1)

    def tokens(x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)

    changes = [lambda x: x, *([to_last, to_first, tokens] if have.dim() > 2 else [])]
    for change in changes:
        if tuple(change(have).shape[1:]) == wanted:
            return moments.reshaped(change)
    if len(wanted) == 1 and have[0].numel() == wanted[0]:
        return moments.reshaped(lambda x: x.flatten(1))
    if [side for side in wanted if side > 1] == [side for side in have.shape[1:] if side > 1]:
        return moments.reshaped(lambda x: x.reshape(1, *wanted))
    return None


def per_axis(values: Tensor, shape: torch.Size) -> Tensor | None:
    """Factors shaped to broadcast over (B, C, …) or (B, …, C): one, one per channel, or of a shape that broadcasts.

    Returns:
        The factors, or None where they match no axis.
    """
    if values.numel() == 1:
        return values.reshape([1] * len(shape))
    if values.dim() > 1:
        fits = len(values.shape) <= len(shape) and all(
            a in (1, b) for a, b in zip(reversed(values.shape), reversed(shape), strict=False)
        )
        return values if fits else None
    for axis in (1, len(shape) - 1):
        if shape[axis] == values.numel():
            return values.reshape([-1 if index == axis else 1 for index in range(len(shape))])
    return None
