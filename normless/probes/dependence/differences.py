"""Where two tensors differ by more than rounding, and which examples of a batch that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Kernels that add in no fixed order repeat themselves up to rounding; a change is what exceeds that clearly.
_ABOVE_NOISE = 8.0
# Larger numbers stand for minus infinity in attention masks; no rounding is measured by them.
_MASKED = 1e30


def changed(value: Tensor, other: Tensor, noise: float = 0.0) -> Tensor:
    """Where two tensors of one shape differ by more than the noise; NaN equals NaN."""
    differs = (value != other) & ~((value != value) & (other != other))
    # Of two values one of which is not finite the gap is not below any noise.
    return differs & ~(gap(value, other) <= _ABOVE_NOISE * noise) if noise else differs


def largest_difference(value: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors of one shape, 0 where they are the same."""
    differs = changed(value, other)
    return float(gap(value[differs], other[differs]).max()) if differs.any() else 0.0


def noise_of(value: Tensor, repeated: Tensor, rounding: float) -> float:
    """How far a tensor strays by chance: as far as its repetition does, or rounding."""
    noise = largest_difference(value, repeated)
    if not rounding or not value.is_floating_point():
        return noise
    sizes = value.abs()[value.abs() < _MASKED]
    return max(noise, rounding * float(sizes.max())) if len(sizes) else noise


def gap(value: Tensor, other: Tensor) -> Tensor:
    """How far two tensors of one shape lie apart at every element."""
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) - other.to(wide)).abs()


def holds_examples(tensor: Tensor, batch: int) -> bool:
    """Whether a tensor has an axis that could hold the examples, alone or folded with another axis."""
    return tensor.numel() > 0 and any(size % batch == 0 for size in tensor.shape)


@dataclass(frozen=True)
class Place:
    """Where in a tensor some examples lie: example b has, along one axis of size a·B·c, the indices (·, b, ·)."""

    axis: int
    size: int
    inner: int
    examples: frozenset[int]

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has that axis."""
        return tensor.dim() > self.axis and tensor.shape[self.axis] == self.size

    def mask(self, tensor: Tensor, batch: int) -> Tensor:
        """True at the examples, in a shape that broadcasts against the tensor's."""
        rows = torch.zeros(batch, dtype=torch.bool, device=tensor.device)
        rows[list(self.examples)] = True
        along = rows.repeat_interleave(self.inner).repeat(self.size // (batch * self.inner))
        return along.view(-1, *[1] * (tensor.dim() - self.axis - 1))


def place_of(change: Tensor, batch: int, count: int, expected: Iterable[int]) -> Place | None:
    """Where a change lies if it fills the places of at most `count` examples along some axis; None if of more.

    The axis may hold the batch alone, folded with an outer one (heads) or an inner one (windows). Of several
    readings the first that gives the expected examples is taken.
    """
    found: list[Place] = []
    for axis, size in enumerate(change.shape):
        if size % batch:
            continue
        along = change.movedim(axis, 0).reshape(size, -1).any(dim=1).cpu()
        for inner in range(1, size // batch + 1):
            if (size // batch) % inner == 0:
                rows = along.view(-1, batch, inner).any(dim=2).any(dim=0)
                examples = frozenset(rows.nonzero().flatten().tolist())
                if len(examples) <= count:
                    found.append(Place(axis, size, inner, examples))
    return next((place for place in found if place.examples <= set(expected)), found[0] if found else None)
