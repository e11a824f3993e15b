"""The summands of a weight's gradient, one for each example and position, and what is summed of them.

For a convolution (Bjorck et al. 2018, equation 4)

    ∂L/∂K(o, c, i) = Σ_bx d(b, x; o, c, i),    d = ∂L/∂OUTPUT(b, o, x) · INPUT(b, c, s·x + i)

with examples b, positions x and kernel offsets i. A layer has as many d as its multiplications, so they are never
held: Σ|d| is the weight gradient of |INPUT| and |∂L/∂OUTPUT|, and sums over examples or over positions alone are
batched matrix products, as many at a time as fit a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

_Index: TypeAlias = tuple[slice | int, ...]

# Elements of a batch of products held at a time: 4 MiB in float32, about what a processor's cache keeps.
_HELD = 2**20


@dataclass(frozen=True)
class Sums:
    """What is summed of the summands d of each parameter; every tensor has the weight's shape.

    Attributes:
        sum_abs: Σ_bx |d|.
        sum_b_abs_sum_xy: Σ_b |Σ_x d|.
        sum_xy_abs_sum_b: Σ_x |Σ_b d|.
        total: Σ_bx d, the gradient.
    """

    sum_abs: Tensor
    sum_b_abs_sum_xy: Tensor
    sum_xy_abs_sum_b: Tensor
    total: Tensor


@dataclass(frozen=True)
class Summands:
    """The summands of one weight's gradient, as the two tensors whose products they are.

    Attributes:
        x: the input with its padding, shape (B, C, *P).
        gradient: of the loss with respect to the output, shape (B, O, *S).
        kernel, stride, dilation: one number for each axis of positions.
        groups: of the convolution.
        shape: of the weight.
    """

    x: Tensor
    gradient: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    shape: tuple[int, ...]

    @property
    def examples(self) -> int:
        """B, the length of the batch axis."""
        return self.x.shape[0]

    @cached_property
    def size(self) -> tuple[int, ...]:
        """S, the number of output positions along each axis."""
        return tuple(self.gradient.shape[2:])

    @property
    def positions(self) -> int:
        """How many output positions there are."""
        return prod(self.size)

    def of_parameter(self, index: tuple[int, ...]) -> Tensor:
        """All summands of one parameter: shape (B, *S).

        Args:
            index: of the parameter within the weight: out-channel, in-channel of its group, kernel offset.

        Raises:
            IndexError: the weight has no such parameter.
        """
        if len(index) != len(self.shape) or any(not 0 <= one < n for one, n in zip(index, self.shape, strict=True)):
            raise IndexError(f"Expected the index of one parameter of a weight of shape {self.shape}, got {index}.")
        out_channel, channel, *offsets = index
        offsets = offsets or [0] * len(self.kernel)
        group = out_channel // self._outputs
        x = self.x[:, group * self.shape[1] + channel]
        for axis, offset in enumerate(offsets):
            start, step = offset * self.dilation[axis], self.stride[axis]
            index_along = torch.arange(self.size[axis], device=x.device) * step + start
            x = x.index_select(axis + 1, index_along)
        return x * self.gradient[:, out_channel]

    def sums(self) -> Sums:
        """The four sums of every parameter."""
        absolute = self._weight_gradient(self.x.abs(), self.gradient.abs())
        if self.examples == 1 or self.positions == 1:
            total = self._weight_gradient(self.x, self.gradient)
            of_examples = total.abs() if self.positions > 1 else absolute
            of_positions = total.abs() if self.examples > 1 else absolute
            return Sums(absolute, of_examples, of_positions, total)
        of_examples, of_positions, total = (torch.zeros_like(absolute) for _ in range(3))
        for phase, offsets in self._phases():
            x = self._at_phase(phase)
            by_example = x.reshape(self.examples * self.groups, self.shape[1], -1)
            for index, start in offsets:
                self._add_examples(by_example, start, of_examples[index], total[index])
            apart = x.permute(2, 0, 1).reshape(-1, self.examples, self.groups, self.shape[1])
            by_position = apart.transpose(1, 2).contiguous()
            for index, start in offsets:
                self._add_positions(by_position, start, of_positions[index])
        return Sums(absolute, of_examples, of_positions, total)

    def _weight_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Σ_bx of the products of two tensors shaped as `x` and `gradient`: shape of the weight."""
        axes = len(self.kernel)
        weight = x.new_empty((gradient.shape[1], x.shape[1] // self.groups, *self.kernel))
        _, found, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, self.stride, [0] * axes, self.dilation, False, [0] * axes, self.groups,
            (False, True, False),
        )  # fmt: skip
        weight_gradient: Tensor = found
        return weight_gradient.reshape(self.shape)

    def _phases(self) -> Iterator[tuple[tuple[int, ...], list[tuple[_Index, int]]]]:
        """Kernel offsets by where they fall between the strides: the phase, then (index in the weight, flat start).

        Offset i of a kernel reads s·x + dilation·i = s·(x + shift) + phase: of the input at every s-th position
        from the phase on, a piece without gaps.
        """
        lengths = self._lengths
        strides = [prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
        found: dict[tuple[int, ...], list[tuple[_Index, int]]] = {}
        for offset in product(*map(range, self.kernel)):
            reach = [one * dilation for one, dilation in zip(offset, self.dilation, strict=True)]
            phase = tuple(one % step for one, step in zip(reach, self.stride, strict=True))
            shifts = [one // step for one, step in zip(reach, self.stride, strict=True)]
            start = sum(shift * stride for shift, stride in zip(shifts, strides, strict=True))
            index: _Index = (slice(None), slice(None), *(offset if len(self.shape) > 2 else ()))
            found.setdefault(phase, []).append((index, start))
        yield from found.items()

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """Q, how many positions of one phase are read along each axis."""
        sides = zip(self.size, self.kernel, self.dilation, self.stride, strict=True)
        return tuple(size + (kernel - 1) * dilation // stride for size, kernel, dilation, stride in sides)

    def _at_phase(self, phase: tuple[int, ...]) -> Tensor:
        """The input at every s-th position from a phase on: (B, C, ∏Q), zeros where it ends earlier."""
        x = self.x
        missing: list[int] = []
        for axis, (first, step, length) in enumerate(zip(phase, self.stride, self._lengths, strict=True)):
            index = [slice(None)] * x.dim()
            index[axis + 2] = slice(first, first + step * length, step)
            x = x[tuple(index)]
            missing = [0, length - x.shape[axis + 2], *missing]
        return F.pad(x, missing).flatten(2).contiguous()

    @cached_property
    def _gradient(self) -> Tensor:
        """The gradient at the positions as `_at_phase` counts them: (B, O, N), zeros between its rows."""
        lengths = self._lengths
        missing: list[int] = []
        for size, length in zip(self.size[1:], lengths[1:], strict=True):
            missing = [0, length - size, *missing]
        padded = F.pad(self.gradient, missing).flatten(2)
        strides = (prod(lengths[axis + 1 :]) for axis in range(len(lengths)))
        last = sum((size - 1) * stride for size, stride in zip(self.size, strides, strict=True))
        return padded[:, :, : last + 1]

    @cached_property
    def _gradient_by_example(self) -> Tensor:
        """(B·groups, O/groups, N)."""
        return self._gradient.reshape(self.examples * self.groups, self._outputs, -1)

    @cached_property
    def _gradient_by_position(self) -> Tensor:
        """(N, groups, O/groups, B)."""
        apart = self._gradient.permute(2, 1, 0).contiguous()
        return apart.reshape(-1, self.groups, self._outputs, self.examples)

    @property
    def _outputs(self) -> int:
        """Out-channels of a group."""
        return self.shape[0] // self.groups

    @property
    def _chunk(self) -> int:
        """How many products of weight-sized matrices are held at a time."""
        return max(1, _HELD // (self.shape[0] * self.shape[1]))

    def _add_examples(self, x: Tensor, start: int, absolute: Tensor, total: Tensor) -> None:
        """Add Σ_b |Σ_x d| and Σ_bx d of one kernel offset; x: (B·groups, C/groups, ∏Q)."""
        gradient = self._gradient_by_example
        shifted = x[:, :, start : start + gradient.shape[2]].transpose(1, 2)
        step = self._chunk * self.groups
        for at in range(0, len(x), step):
            products = torch.bmm(gradient[at : at + step], shifted[at : at + step])
            products = products.reshape(-1, self.shape[0], self.shape[1])
            total += products.sum(0)
            absolute += products.abs_().sum(0)

    def _add_positions(self, x: Tensor, start: int, absolute: Tensor) -> None:
        """Add Σ_x |Σ_b d| of one kernel offset; x: (∏Q, groups, B, C/groups)."""
        gradient = self._gradient_by_position
        for at in range(0, len(gradient), self._chunk):
            piece = gradient[at : at + self._chunk]
            shifted = x[start + at : start + at + len(piece)]
            products = torch.bmm(piece.flatten(0, 1), shifted.flatten(0, 1))
            products = products.reshape(-1, self.shape[0], self.shape[1])
            absolute += products.abs_().sum(0)
