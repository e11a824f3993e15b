"""The summands of a weight's gradient, one for each example and position, and sums of them.

For a convolution (Bjorck et al. 2018, equation 4)

    ∂L/∂K(o, c, i) = Σ_bx d(b, x; o, c, i),    d = ∂L/∂OUTPUT(b, o, x) · INPUT(b, c, s·x + i)

with examples b, positions x and kernel offsets i. A layer has as many d as multiplications, so sums are computed by
batched matrix products, a few megabytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torch import Tensor

# Elements of a batch of products in memory at a time: 4 MiB in float32, about the size of a processor's cache.
_CHUNK = 2**20


@dataclass(frozen=True)
class Sums:
    """Sums of the summands d of each parameter; every tensor has the weight's shape.

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

    @property
    def positions(self) -> int:
        """The number of output positions."""
        return prod(self.gradient.shape[2:])

    def of_parameter(self, index: tuple[int, ...]) -> Tensor:
        """All summands of one parameter: shape (B, *S)."""
        if len(index) != len(self.shape) or any(not 0 <= one < n for one, n in zip(index, self.shape, strict=True)):
            raise IndexError(f"Expected the index of one parameter of a weight of shape {self.shape}, got {index}.")
        out_channel, channel, *offsets = index
        group = out_channel * self.groups // self.shape[0]
        at = tuple(offsets) or (0,) * len(self.kernel)
        windows = self._windows[:, group, channel].movedim(tuple(range(-len(at), 0)), tuple(range(len(at))))
        return windows[at] * self.gradient[:, out_channel]

    def sums(self) -> Sums:
        """The four sums of every parameter."""
        size = (self.groups, self.shape[0] // self.groups, prod(self.shape[1:]))
        absolute, of_examples, of_positions, total = (self.x.new_zeros(size) for _ in range(4))
        for gradient, windows in self._by_example():
            products = gradient @ windows
            total += products.sum(0)
            of_examples += products.abs_().sum(0)
            absolute += (gradient.abs() @ windows.abs()).sum(0)
        for gradient, windows in self._by_position():
            of_positions += (gradient @ windows).abs_().sum(0)
        return Sums(*(one.reshape(self.shape) for one in (absolute, of_examples, of_positions, total)))

    @cached_property
    def _windows(self) -> Tensor:
        """What the kernel reads at each position, a view: (B, groups, C/groups, *S, *K)."""
        windows = self.x.reshape(self.examples, self.groups, -1, *self.x.shape[2:])
        for axis, (kernel, stride, dilation) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            windows = windows.unfold(axis + 3, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
        return windows

    @property
    def _by_group(self) -> Tensor:
        """The gradient as (B, groups, O/groups, *S)."""
        return self.gradient.reshape(self.examples, self.groups, -1, *self.gradient.shape[2:])

    def _by_example(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients (b, groups, O/groups, S) and windows (b, groups, S, C/groups·K), some examples at a time."""
        axes = len(self.kernel)
        spread = [0, 1, *range(3, 3 + axes), 2, *range(3 + axes, 3 + 2 * axes)]
        windows, gradient = self._windows.permute(spread), self._by_group.flatten(3)
        for at in self._chunks(self.examples, self.positions):
            piece = windows[at]
            yield gradient[at], piece.reshape(len(piece), self.groups, self.positions, -1)

    def _by_position(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients (s, groups, O/groups, B) and windows (s, groups, B, C/groups·K), some positions at a time."""
        axes = len(self.kernel)
        windows = self._windows.permute([*range(3, 3 + axes), 1, 0, 2, *range(3 + axes, 3 + 2 * axes)])
        gradient = self._by_group.permute([*range(3, 3 + axes), 1, 2, 0])
        for at in self._chunks(len(windows), self.examples * self.positions // len(windows)):
            piece = gradient[at].flatten(0, axes - 1)
            yield piece, windows[at].reshape(len(piece), self.groups, self.examples, -1)

    def _chunks(self, length: int, others: int) -> Iterator[slice]:
        """Slices of an axis for which the windows, or the products, of each hold at most `_CHUNK` elements."""
        kernels = self.groups * prod(self.shape[1:])
        step = max(1, _CHUNK // max(kernels * others, prod(self.shape)))
        for start in range(0, length, step):
            yield slice(start, start + step)
