"""Differences of two tensors beyond rounding, and the examples of a batch they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Kernels without a fixed order of summation are repeatable up to noise; only clearly larger differences count.
_ABOVE_NOISE = 8.0
# Larger numbers stand for minus infinity in attention masks and do not define a scale of rounding.
_MASKED = 1e30


def changed(value: Tensor, other: Tensor, noise: float = 0.0) -> Tensor:
    """Where two tensors of one shape differ by more than the noise; NaN equals NaN."""
    differs = (value != other) & ~((value != value) & (other != other))
    # Differences of values that are not finite are not below any noise.
    return differs & ~(gap(value, other) <= _ABOVE_NOISE * noise) if noise else differs


def largest_difference(value: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors of one shape, 0 if they are equal."""
    differs = changed(value, other)
    return float(gap(value[differs], other[differs]).max()) if differs.any() else 0.0


def noise_of(value: Tensor, repeated: Tensor, rounding: float) -> float:
    """The largest difference to a repetition, or `rounding` times the largest value if that is more."""
    noise = largest_difference(value, repeated)
    if not rounding or not value.is_floating_point():
        return noise
    sizes = value.abs()[value.abs() < _MASKED]
    return max(noise, rounding * float(sizes.max())) if len(sizes) else noise


def gap(value: Tensor, other: Tensor) -> Tensor:
    """The absolute difference of two tensors of one shape, in double precision."""
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) - other.to(wide)).abs()


def has_example_axis(tensor: Tensor, batch: int) -> bool:
    """Whether a tensor has an axis that could hold the examples, alone or folded with another axis."""
    return tensor.numel() > 0 and any(size % batch == 0 for size in tensor.shape)


@dataclass(frozen=True)
class ExampleSlice:
    """The elements of some examples in a tensor: (·, b, ·) for example b along one axis of size a·B·inner."""

    axis: int
    size: int
    inner: int
    examples: frozenset[int]

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has that axis."""
        return tensor.dim() > self.axis and tensor.shape[self.axis] == self.size

    def mask(self, tensor: Tensor, batch: int) -> Tensor:
        """True at the examples, in a shape that broadcasts to the tensor's."""
        rows = torch.zeros(batch, dtype=torch.bool, device=tensor.device)
        rows[list(self.examples)] = True
        along = rows.repeat_interleave(self.inner).repeat(self.size // (batch * self.inner))
        return along.view(-1, *[1] * (tensor.dim() - self.axis - 1))


def locate_change(change: Tensor, batch: int, count: int, expected: Iterable[int]) -> ExampleSlice | None:
    """The slice of at most `count` examples that contains a change, preferably of expected ones; None without one.

    The axis may hold the batch alone, folded with an outer axis (heads) or an inner one (windows).
    """
    slices: list[ExampleSlice] = []
    for axis, size in enumerate(change.shape):
        if size % batch:
            continue
        along = change.movedim(axis, 0).reshape(size, -1).any(dim=1).cpu()
        for inner in range(1, size // batch + 1):
            if (size // batch) % inner == 0:
                rows = along.view(-1, batch, inner).any(dim=2).any(dim=0)
                examples = frozenset(rows.nonzero().flatten().tolist())
                if len(examples) <= count:
                    slices.append(ExampleSlice(axis, size, inner, examples))
    return next((one for one in slices if one.examples <= set(expected)), slices[0] if slices else None)
