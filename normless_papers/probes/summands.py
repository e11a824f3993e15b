"""The summands of a weight's gradient, one for each example and position, and sums of them.

For a convolution (Bjorck et al. 2018, equation 4)

    ∂L/∂K(o, c, i) = Σ_bx d(b, x; o, c, i),    d = ∂L/∂OUTPUT(b, o, x) · INPUT(b, c, s·x + i)

with examples b, positions x and kernel offsets i. A layer has as many d as multiplications, so sums are computed
without them: over positions first by convolutions' own gradients, over examples first by batched matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import ScalarAffine

# Elements in memory at a time: of the gradients of single examples, and of the windows or products of some positions,
# which are 1 MiB in float32, the size of a processor's cache.
_PRODUCTS = 2**20
_CHUNK = 2**18


@dataclass(frozen=True)
class Sums:
    """Σ_bx |d|, Σ_b |Σ_x d|, Σ_x |Σ_b d| and the gradient Σ_bx d of each parameter, of the weight's shape."""

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
        kernel, stride, dilation: of the convolution, one number for each axis of positions; and its `groups`.
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
        of_examples, total = self.x.new_zeros(self.shape), self.x.new_zeros(self.shape)
        step = max(1, _PRODUCTS // prod(self.shape))
        for x, gradient in zip(torch.split(self.x, step), torch.split(self.gradient, step), strict=True):
            # A convolution of the examples as its groups has one gradient for each.
            products = self._contracted(x.flatten(0, 1)[None], gradient.flatten(0, 1)[None], len(x))
            total += products.sum(0)
            of_examples += products.abs_().sum(0)
        absolute = self._contracted(self.x.abs(), self.gradient.abs(), 1)[0]
        of_positions = self.x.new_zeros(size)
        for gradient, windows in self._by_position():
            of_positions += (gradient @ windows).abs_().sum(0)
        by_offset = of_positions.reshape(self.shape[0], *self.kernel, self.shape[1])
        return Sums(absolute, of_examples, by_offset.movedim(-1, 1).reshape(self.shape), total)

    def _contracted(self, x: Tensor, gradient: Tensor, copies: int) -> Tensor:
        """Σ_bx d of the weights of some copies of the layer side by side, shape (copies, *shape).

        Shapes: x (B, copies·C, *P), gradient (B, copies·O, *S).
        """
        weight = x.new_empty(1).expand(copies * self.shape[0], self.shape[1], *self.kernel)
        zeros, mask = [0] * len(self.kernel), [False, True, False]
        sides = gradient, x, weight, None, self.stride, zeros, self.dilation, False, zeros
        # Products in full float32, as those of matrices are.
        cudnn = torch.backends.cudnn
        with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False):
            _, sums, _ = torch.ops.aten.convolution_backward(*sides, copies * self.groups, mask)
        return cast(Tensor, sums).reshape(copies, *self.shape)

    @cached_property
    def _windows(self) -> Tensor:
        """What the kernel reads at each position, a view: (B, groups, C/groups, *S, *K)."""
        windows = _positions_first(self.x).reshape(self.examples, self.groups, -1, *self.x.shape[2:])
        for axis, (kernel, stride, dilation) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            windows = windows.unfold(axis + 3, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
        return windows

    def _by_position(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients (s, groups, O/groups, B) and windows (s, groups, B, K·C/groups), some positions at a time."""
        axes = len(self.kernel)
        windows = self._windows.permute([*range(3, 3 + axes), 1, 0, *range(3 + axes, 3 + 2 * axes), 2])
        gradient = _positions_first(self.gradient)
        gradient = gradient.reshape(self.examples, self.groups, -1, *gradient.shape[2:])
        gradient = gradient.permute([*range(3, 3 + axes), 1, 2, 0])
        others = (
            self.positions // len(windows) * max(self.examples * self.groups * prod(self.shape[1:]), prod(self.shape))
        )
        step = max(1, _CHUNK // others)
        for start in range(0, len(windows), step):
            at = slice(start, start + step)
            piece = gradient[at].flatten(0, axes - 1)
            yield piece, windows[at].reshape(len(piece), self.groups, self.examples, -1)


def _positions_first(x: Tensor) -> Tensor:
    """A copy of x, shape (B, C, *P), with positions first and channels last in memory: windows are copied faster."""
    # Of a matrix, torch transposes blocks that fit the cache.
    return x.flatten(2).flatten(0, 1).t().contiguous().t().reshape(x.shape)


class UnknownSummandsError(ValueError):
    """The tensor that a layer multiplies by its weight is unknown; the message is the reason."""


def summands_of(module: nn.Module, x: Tensor, gradient: Tensor) -> Summands:
    """The summands of a layer's weight gradient, from the layer's input and the gradient of its output.

    For a layer with a multiplier or a standardized weight they sum to the gradient of the weight as the layer applies
    it. A linear layer's positions are the axes between the first and the last; a transposed convolution's are those
    of its input, with x and the gradient exchanged.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, gradient.dtype), torch.float32)
    x, gradient = weight_input(module, x.to(dtype)), gradient.to(dtype)
    if isinstance(module, nn.Linear):
        return _of_linear(module, x, gradient)
    if isinstance(module, _ConvNd):
        return _of_convolution(module, x, gradient)
    raise UnknownSummandsError(f"a {type(module).__name__} is neither a convolution nor a linear layer")


def weight_input(module: nn.Module, x: Tensor) -> Tensor:
    """The tensor that a layer multiplies by its weight: its input, as preprocessed by scalar layers."""
    if not isinstance(module, ScalarAffine):
        return x
    before = module.before
    with torch.no_grad():
        if before is not None:
            if any(isinstance(one, _DropoutNd) and one.p and one.training for one in before.modules()):
                raise UnknownSummandsError("the mask of the dropout before its weight is unknown")
            # Without hooks, and without a second update of running statistics.
            buffers = [(buffer, buffer.clone()) for buffer in before.buffers()]
            x = before.forward(x)
            for buffer, value in buffers:
                buffer.copy_(value)
        return x if module.input_bias is None else x + module.input_bias.to(x.dtype)


def padded(module: _ConvNd, x: Tensor) -> Tensor:
    """The padded input of a convolution, shape (B, C, *P)."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode=mode)


def _of_linear(module: nn.Linear, x: Tensor, gradient: Tensor) -> Summands:
    """A linear layer as a convolution with a kernel of one element."""
    shape = (module.out_features, module.in_features)
    if x.shape[-1] != shape[1] or gradient.shape != (*x.shape[:-1], shape[0]):
        sizes = f"{tuple(x.shape)} and {tuple(gradient.shape)}"
        raise UnknownSummandsError(f"its input and output have shapes {sizes}, which its weight does not explain")
    if x.dim() == 1:
        x, gradient = x.unsqueeze(0), gradient.unsqueeze(0)
    x, gradient = (side.movedim(-1, 1).flatten(2) if side.dim() > 2 else side.unsqueeze(2) for side in (x, gradient))
    return Summands(x, gradient, (1,), (1,), (1,), 1, shape)


def _of_convolution(module: _ConvNd, x: Tensor, gradient: Tensor) -> Summands:
    axes = len(module.kernel_size)
    if x.dim() == axes + 1:
        x, gradient = x.unsqueeze(0), gradient.unsqueeze(0)
    if isinstance(module, _ConvTransposeNd):
        x, gradient = gradient, x
    x = padded(module, x)
    require_positions(module, x, gradient)
    shape = (gradient.shape[1], x.shape[1] // module.groups, *module.kernel_size)
    return Summands(x, gradient, module.kernel_size, module.stride, module.dilation, module.groups, shape)


def require_positions(module: _ConvNd, x: Tensor, y: Tensor) -> None:
    """Check that a convolution's output has the positions that its attributes give for its padded input x."""
    sides = zip(module.kernel_size, module.dilation, module.stride, x.shape[2:], strict=True)
    fits = [(length - (kernel - 1) * dilation - 1) // stride + 1 for kernel, dilation, stride, length in sides]
    if list(y.shape[2:]) != fits:
        raise UnknownSummandsError(
            f"its output has positions {tuple(y.shape[2:])} where its kernel, stride and padding give "
            f"{tuple(fits)}: its forward code changes its input first"
        )
