"""The summands of a weight's gradient, one for each example and position, and their sums.

For a convolution (Bjorck et al. 2018, equation 4)

    ∂L/∂K(o, c, i) = Σ_bx d(b, x; o, c, i),    d = ∂L/∂OUTPUT(b, o, x) · INPUT(b, c, s·x + i)

with examples b, positions x and kernel offsets i. A layer has as many d as multiplications, so sums are computed
without storing them. Sums over positions first, and over examples first, are batched matrix products of the gradient
and the kernel's windows along the last axis, which are contiguous in memory with channels last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import ScalarAffine

# Elements of windows and products in memory at a time: 2 MiB in float32, about the size of a processor's cache.
_CHUNK = 2**19


@dataclass(frozen=True)
class SummandTotals:
    """Σ_bx |d|, Σ_b |Σ_x d|, Σ_x |Σ_b d| and the gradient Σ_bx d of each parameter, of the weight's shape."""

    sum_abs: Tensor
    sum_b_abs_sum_xy: Tensor
    sum_xy_abs_sum_b: Tensor
    total: Tensor


@dataclass(frozen=True)
class Summands:
    """The summands of a weight's gradient, as the two tensors that they are products of.

    Attributes:
        x: the input with its padding, shape (B, C, *P).
        gradient: of the loss with respect to the output, shape (B, O, *S).
        kernel, stride, dilation: of the convolution, a number for each axis of positions.
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
        """Return all summands of a parameter: shape (B, *S)."""
        if len(index) != len(self.shape) or any(not 0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            raise IndexError(f"Expected the index of one parameter of a weight of shape {self.shape}, got {index}.")
        out_channel, channel, *offsets = index
        group = out_channel * self.groups // self.shape[0]
        read = self._positions_read(tuple(offsets) or (0,))
        return self.x[:, group * self.shape[1] + channel][(slice(None), *read)] * self.gradient[:, out_channel]

    @torch.no_grad()
    def sums(self) -> SummandTotals:
        """Return the four sums of every parameter."""
        size = (prod(self.kernel[:-1]), self.groups, self.shape[0] // self.groups, self.kernel[-1] * self.shape[1])
        total, of_examples, of_positions = self.x.new_zeros((3, *size))
        for products in self._products(self._by_example()):
            total += products.sum(1)
            of_examples += products.abs_().sum(1)
        for products in self._products(self._by_position()):
            of_positions += products.abs_().sum(1)
        return SummandTotals(self._sum_abs(), *map(self._of_weight, (of_examples, of_positions, total)))

    def _sum_abs(self) -> Tensor:
        """Compute Σ_bx |d|, as the gradient of a convolution of some examples at a time."""
        total = self.x.new_zeros((*self.shape[:2], *self.kernel))
        zeros, mask = [0] * len(self.kernel), [False, True, False]
        pieces = _pieces(self.examples, self.x[0].numel() + self.gradient[0].numel())
        # TF32 is off, so that products are as precise as matrix products.
        cudnn = torch.backends.cudnn
        with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False):
            for x, gradient in zip(self.x.tensor_split(pieces), self.gradient.tensor_split(pieces), strict=True):
                sides = gradient.abs(), x.abs(), total, None, self.stride, zeros, self.dilation, False, zeros
                total += torch.ops.aten.convolution_backward(*sides, self.groups, mask)[1]
        return total.reshape(self.shape)

    def _products(self, pairs: Iterable[tuple[Tensor, Iterable[Tensor]]]) -> Iterator[Tensor]:
        """Multiply gradients (n·groups, O/groups, r) by each of some rows of windows (n·groups, r, k·C/groups).

        A product has shape (rows, n, groups, O/groups, k·C/groups) and is valid until the next one, which reuses its
        memory.
        """
        size = (prod(self.kernel[:-1]), self.shape[0] // self.groups, self.kernel[-1] * self.shape[1])
        products = self.x.new_empty(0)
        for gradient, windows in pairs:
            if products.numel() != len(gradient) * prod(size):
                products = self.x.new_empty(size[0], len(gradient) // self.groups, self.groups, *size[1:])
            for out, row in zip(products.flatten(1, 2), windows, strict=True):
                torch.bmm(gradient, row, out=out)
            yield products

    @property
    def _rows(self) -> Tensor:
        """A view of the kernel's windows along the last axis: (B, *P without the last, S, groups, k, C/groups)."""
        x = self.x.movedim(1, -1)
        x = x.reshape(*x.shape[:-1], self.groups, -1)
        window = (self.kernel[-1] - 1) * self.dilation[-1] + 1
        return x.unfold(-3, window, self.stride[-1])[..., :: self.dilation[-1]].transpose(-1, -2)

    def _by_example(self) -> Iterator[tuple[Tensor, Iterator[Tensor]]]:
        """Yield gradients and windows of some examples; r are the positions."""
        rows = self._rows.movedim(-3, 1)
        gradient = self.gradient.reshape(self.examples, self.groups, -1, self.positions)
        pieces = _pieces(self.examples, rows[0].numel() + prod(self.shape))
        reads = [self._positions_read(offsets) for offsets in product(*map(range, self.kernel[:-1]))]
        for piece, views in zip(gradient.tensor_split(pieces), rows.tensor_split(pieces), strict=True):
            # One copy serves all rows of the kernel.
            windows = views.contiguous().flatten(0, 1)
            each = (windows[(slice(None), *read)].flatten(1, -3).flatten(2) for read in reads)
            yield piece.flatten(0, 1), each

    def _by_position(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients and windows of some positions; r are the examples."""
        axes = len(self.kernel) - 1
        # Matrix products are faster with examples last. As a matrix, torch transposes it in blocks that fit the
        # cache.
        gradient = self.gradient.movedim(1, -1)
        size = (*gradient.shape[1:-1], self.groups, self.shape[0] // self.groups, self.examples)
        gradient = gradient.flatten(1).t().contiguous().view(size)
        # (*P without the last, S, groups, B, k, C/groups)
        rows = self._rows.movedim(0, -3)
        pieces = _pieces(self.gradient.shape[-1], prod(self.shape))
        for views, piece in zip(rows.tensor_split(pieces, axes), gradient.tensor_split(pieces, axes), strict=True):
            # Without groups and dilation this is a view.
            windows = views.flatten(-2).flatten(axes, axes + 1)
            of_outputs = piece.flatten(axes, axes + 1)
            for position in product(*map(range, size[:axes])):
                read = _slices(position, self.stride, self.kernel[:-1], self.dilation)
                yield of_outputs[position], windows[read].reshape(-1, *windows.shape[axes:])

    def _positions_read(self, offsets: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the input positions read at an offset in the kernel, for as many axes as offsets."""
        return _slices(offsets, self.dilation, self.gradient.shape[2:], self.stride)

    def _of_weight(self, sums: Tensor) -> Tensor:
        """Reshape sums of (kernel without its last axis, groups, O/groups, k·C/groups) to the weight's shape."""
        sums = sums.reshape(*self.kernel[:-1], self.shape[0], self.kernel[-1], self.shape[1])
        return sums.movedim((-3, -1), (0, 1)).reshape(self.shape)


def _slices(
    starts: Iterable[int], by: Iterable[int], lengths: Iterable[int], steps: Iterable[int]
) -> tuple[slice, ...]:
    """Make slices of given lengths and steps, which start at `starts` times `by`."""
    axes = zip(starts, by, lengths, steps, strict=False)
    return tuple(
        slice(start * unit, start * unit + (length - 1) * step + 1, step) for start, unit, length, step in axes
    )


def _pieces(length: int, size: int) -> int:
    """Return the number of pieces to split a computation of `length` elements into, each of a size."""
    return max(1, min(length, -(-length * size // _CHUNK)))


class UnknownSummandsError(ValueError):
    """The tensor that a layer multiplies by its weight is unknown; the message gives the reason."""


def summands_of(module: nn.Module, x: Tensor, gradient: Tensor) -> Summands:
    """Return the summands of a layer's weight gradient, from the layer's input and the gradient of its output.

    With a multiplier or a standardized weight they sum to the gradient of the weight as the layer applies it. A
    linear layer's positions are the axes between the first and the last; a transposed convolution's are those of its
    input, with x and the gradient exchanged.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, gradient.dtype), torch.float32)
    x, gradient = weight_input(module, x.to(dtype)), gradient.to(dtype)
    if isinstance(module, nn.Linear):
        return _of_linear(module, x, gradient)
    if isinstance(module, _ConvNd):
        return _of_convolution(module, x, gradient)
    raise UnknownSummandsError(f"a {type(module).__name__} is neither a convolution nor a linear layer")


def weight_input(module: nn.Module, x: Tensor) -> Tensor:
    """Return the tensor that a layer multiplies by its weight: its input, preprocessed by scalar layers."""
    if not isinstance(module, ScalarAffine):
        return x
    before = module.before
    with torch.no_grad():
        if before is not None:
            if any(isinstance(part, _DropoutNd) and part.p and part.training for part in before.modules()):
                raise UnknownSummandsError("the mask of the dropout before its weight is unknown")
            # Without hooks, and without a second update of running statistics.
            buffers = [(buffer, buffer.clone()) for buffer in before.buffers()]
            x = before.forward(x)
            for buffer, value in buffers:
                buffer.copy_(value)
        return x if module.input_bias is None else x + module.input_bias.to(x.dtype)


def padded(module: _ConvNd, x: Tensor) -> Tensor:
    """Pad the input of a convolution, shape (B, C, *P)."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode=mode)


def _of_linear(module: nn.Linear, x: Tensor, gradient: Tensor) -> Summands:
    """Treat a linear layer as a convolution with a kernel of one element."""
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
    x, gradient = padded(module, _channels_last(x)), _channels_last(gradient)
    require_positions(module, x, gradient)
    shape = (gradient.shape[1], x.shape[1] // module.groups, *module.kernel_size)
    return Summands(x, gradient, module.kernel_size, module.stride, module.dilation, module.groups, shape)


def _channels_last(x: Tensor) -> Tensor:
    """Store x, shape (B, C, *P), with channels last in memory, so that windows along the last axis need no copy."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def require_positions(module: _ConvNd, x: Tensor, y: Tensor) -> None:
    """Check that a convolution's output has the positions that its attributes give for its padded input x."""
    sides = zip(module.kernel_size, module.dilation, module.stride, x.shape[2:], strict=True)
    fits = [(length - (kernel - 1) * dilation - 1) // stride + 1 for kernel, dilation, stride, length in sides]
    if list(y.shape[2:]) != fits:
        raise UnknownSummandsError(
            f"its output has positions {tuple(y.shape[2:])}, but its kernel, stride and padding give {tuple(fits)}, "
            "so its forward code changes its input first"
        )
