"""Scalar biases and multipliers on CUDA, by Triton kernels of one pass each.

Written with operators, a scalar costs a launch that casts it, a pass over the activations, and another pass that sums
their gradient. The functions here keep the dtype and the memory format of their input, and sum in the pass that
computes the gradient. `kernels_fit` says when they may replace operators. Second derivatives use operators.

A call of a kernel from Python takes the host about 50 µs, more than the operators that it replaces, although the GPU
finishes earlier. Kernels are therefore used on very large tensors, and on all tensors in the body of `every_kernel`,
when a step is captured as a CUDA graph, which is replayed without Python. The environment variable NORMLESS_KERNELS
is auto (this behaviour), always, or never.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from normless.nn._channels import per_channel
from normless.nn.kernels._on_cpu import SMALLEST, is_eager

WHEN = os.environ.get("NORMLESS_KERNELS", "auto")
# With this many elements, the GPU takes longer for a pass than the host for the call.
LARGE = 2**25
_LARGEST = 2**31 - 2**20
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@contextmanager
def every_kernel() -> Iterator[None]:
    """Use kernels on tensors of every size in the body, for steps that are captured as a CUDA graph.

    The body includes the warm-up steps of a capture, since kernels are compiled in their first call.
    """
    global WHEN
    before = WHEN
    WHEN = "always" if before == "auto" else before
    try:
        yield
    finally:
        WHEN = before


@cache
def _kernels() -> ModuleType | None:
    """Return the module of kernels, or None if Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from normless.nn.kernels import _triton_kernels as triton_kernels

    return triton_kernels


def kernels_fit(x: Tensor, *parts: Tensor | None, smallest: int = SMALLEST) -> bool:
    """Whether kernels may replace operators on x: on CUDA, eager, dense, in at most 32 bits."""
    return (
        WHEN != "never"
        and x.is_cuda
        and is_eager(x)
        and (smallest if WHEN == "always" else LARGE) <= x.numel() < _LARGEST
        and x.dtype in _DTYPES
        and x.get_device() == torch.cuda.current_device()
        and all(part is None or (part.device == x.device and part.dtype in _DTYPES) for part in parts)
        and all(part is None or type(part) in (Tensor, nn.Parameter) for part in parts)
        and _is_dense(x)
        and _kernels() is not None
    )


def _is_dense(x: Tensor) -> bool:
    """Whether the elements of x fill its storage without gaps, in one of torch's memory formats."""
    if x.is_contiguous():
        return True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last)


def _in_order_of(x: Tensor, like: Tensor) -> Tensor:
    """Return x in the memory order of another tensor of its shape."""
    return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)


class ShiftedReLUOnCuda(torch.autograd.Function):
    """Compute relu(x + b₁) + b₂; backward only needs the result; b₁ and b₂ have one element or are None.

    If x + b₁ is above 0, the result is above b₂: it is rounded up if it would be rounded to b₂.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        kernels: Any = _kernels()
        ctx.counter = kernels.counter_for(x)
        y: Tensor = kernels.shifted_relu(x, before, after, ctx.counter)
        ctx.save_for_backward(y, after)
        ctx.dtypes = [None if part is None else part.dtype for part in (before, after)]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        y, after = ctx.saved_tensors
        of_before, of_after = ctx.dtypes
        if torch.is_grad_enabled():
            least = 0.0 if after is None else after.detach().to(y.dtype)
            passed = torch.where(y.detach() <= least, 0.0, gradient)
            sums = [passed.float().sum().reshape(1), gradient.float().sum().reshape(1)]
        else:
            kernels: Any = _kernels()
            gradient = _in_order_of(gradient, y)
            passed, *sums = kernels.shifted_relu_backward(gradient, y, after, ctx.counter, torch.float32)
        wanted = [
            total.to(dtype) if dtype is not None and needed else None
            for total, dtype, needed in zip(sums, (of_before, of_after), ctx.needs_input_grad[1:], strict=True)
        ]
        return passed, *wanted


class ShiftedOnCuda(torch.autograd.Function):
    """Compute x + b for b of one element; backward does not need x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> Tensor:
        kernels: Any = _kernels()
        ctx.counter, ctx.dtype = kernels.counter_for(x), shift.dtype
        return cast(Tensor, kernels.shifted(x, shift, ctx.counter))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if not ctx.needs_input_grad[1]:
            return gradient, None
        if torch.is_grad_enabled() or not _is_dense(gradient):
            return gradient, gradient.float().sum().reshape(1).to(ctx.dtype)
        kernels: Any = _kernels()
        return gradient, kernels.total(gradient, ctx.counter, ctx.dtype)


class ScaledOnCuda(torch.autograd.Function):
    """Multiply a weight by one factor, or by one per index of its first axis, in a given dtype."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
        kernels: Any = _kernels()
        ctx.counter = kernels.counter_for(weight)
        ctx.save_for_backward(weight, factor)
        return cast(Tensor, kernels.scaled(weight, factor, ctx.counter, dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weight, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradient, column = gradient.to(weight.dtype), factor.reshape(-1, *[1] * (weight.dim() - 1))
            return gradient * column, (gradient * weight).sum_to_size(column.shape).reshape(factor.shape), None
        kernels: Any = _kernels()
        return *kernels.scaled_backward(_in_order_of(gradient, weight), weight, factor, ctx.counter), None


def shifted(x: Tensor, shift: Tensor | None) -> Tensor:
    """Return x + b in the dtype of x, for b of one element or None."""
    if shift is None:
        return x
    if kernels_fit(x, shift):
        return cast(Tensor, ShiftedOnCuda.apply(x, shift))
    return x + unpromoting(shift, x)


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    """Return x, shape (B, C, …), times one factor, in the dtype of x, or times one factor per channel."""
    return x * (unpromoting(factor, x) if factor.numel() == 1 else per_channel(factor, x))


def unpromoting(scalar: Tensor, x: Tensor) -> Tensor:
    """Remove the axis of a scalar part if its dtype differs, so that an operation with x keeps the dtype of x."""
    return scalar if scalar.dtype == x.dtype or x.dim() == 0 else scalar.reshape(())


def scaled(weight: Tensor, factor: Tensor) -> Tensor:
    """Return a weight times a factor of one element, or of one per index of the first axis.

    Under autocast on CUDA the product may have the dtype of autocast, to which a layer would cast it.
    """
    if weight.is_cuda and kernels_fit(weight, factor, smallest=1) and weight.stride(0) == weight[0].numel():
        low = torch.is_autocast_enabled("cuda") and weight.dtype == torch.float32
        dtype = torch.get_autocast_dtype("cuda") if low else weight.dtype
        if dtype in _DTYPES:
            return cast(Tensor, ScaledOnCuda.apply(weight, factor, dtype))
    return weight * factor.reshape(-1, *[1] * (weight.dim() - 1))
