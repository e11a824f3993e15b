"""A ReLU and a convolution with scalar biases that keep one tensor for their backward pass.

Written with operators, relu(x) + b and conv(x + b) each store their input for backward besides the input of the next
layer, and each bias is another pass over the activations in both directions. The functions below compute the same
values; `is_faster` says when they are faster. Second derivatives work.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

# With fewer elements, the passes of the operators cost less than the calls that the functions save.
SMALLEST = 2**15


def is_eager(x: Tensor) -> bool:
    """Whether a function may replace operators on x.

    Compilers, exports, `torch.func` and dispatch modes must see the operators.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, nn.Parameter)
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch.autograd.forward_ad._current_level < 0
    )


def is_faster(x: Tensor, *parts: Tensor | None) -> bool:
    """Whether the functions here are faster than operators: eager training on the CPU in one precision."""
    return (
        x.is_cpu
        and is_eager(x)
        and x.numel() >= SMALLEST
        and x.dtype in (torch.float32, torch.float64)
        and all(part is None or part.dtype == x.dtype for part in parts)
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class ShiftedReLU(torch.autograd.Function):
    """Compute relu(x + b₁) + b₂ = max(x + (b₁ + b₂), b₂); backward only needs the result.

    The gradient passes where the result is above b₂; b₁ and b₂ have one element each, each may be None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        ctx.least = 0.0 if after is None else after.item()
        y: Tensor = (x + (ctx.least if before is None else ctx.least + before.item())).clamp_(min=ctx.least)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradient, y, ctx.least)
        shifts = (passed if ctx.needs_input_grad[1] else None, gradient if ctx.needs_input_grad[2] else None)
        return passed, *(None if part is None else part.sum().reshape(1) for part in shifts)


def added_to_convolution(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any, groups: int = 1
) -> Tensor:
    """Compute W ∗ (x + b₁) + b = W ∗ x + (W₁T · b₁ + b) of zero-padded x; backward needs x and not x + b₁.

    T, shape (taps, positions), is 1 where a tap of the kernel lies inside the input and 0 elsewhere. W₁, shape
    (out, taps), sums W over its inputs. b₁ has one element; `settings` are stride, padding and dilation.
    """
    taps = _taps(x.shape[2:], weight.shape[2:], settings, x.dtype)
    sums = weight.flatten(2).sum(1) * shift
    moved = sums @ taps if bias is None else torch.addmm(bias[:, None], sums, taps)
    stride, padding, dilation = settings
    y = torch.convolution(x, weight, None, stride, padding, dilation, False, [0] * (x.dim() - 2), groups)
    # No other module has seen y, and the backward pass of the convolution does not read it.
    return cast(Tensor, _AddedToEach.apply(y, moved.view(y.shape[1:])))


class _AddedToEach(torch.autograd.Function):
    """Add m, shape (C, …), to each example of y, shape (B, C, …), in place.

    torch's broadcasting takes ten times as long in both directions if y is channels-last.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, added: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y.add_(torch.empty_like(y[0]).copy_(added))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        rows = gradient.movedim(1, -1)
        are_last = rows.is_contiguous()
        rows = rows if are_last else gradient
        # A product is faster than a sum over the examples.
        total = (gradient.new_ones(1, len(rows)) @ rows.flatten(1)).view(rows.shape[1:])
        return gradient, total.movedim(-1, 0) if are_last else total


@lru_cache(maxsize=16)
def _taps(size: torch.Size, kernel: torch.Size, settings: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
    """Return which taps of a kernel lie inside an input at each position, shape (taps, positions)."""
    each = torch.eye(kernel.numel(), dtype=dtype, device="cpu").view(-1, 1, *kernel)
    whole = torch.ones(1, 1, *size, dtype=dtype, device="cpu")
    stride, padding, dilation = settings
    taps = torch.convolution(whole, each, None, stride, padding, dilation, False, [0] * len(size), 1)
    return taps.flatten(2)[0]
