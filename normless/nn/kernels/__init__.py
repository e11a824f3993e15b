"""Scalar parts by the fastest function: Triton's kernels on CUDA, one that keeps one tensor on the CPU, or operators.

The layers import from this file alone.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from normless.nn.kernels._on_cpu import ShiftedReLU, added_to_convolution, is_faster
from normless.nn.kernels._on_cuda import (
    ShiftedReLUOnCuda,
    every_kernel as every_kernel,
    kernels_fit,
    multiplied as multiplied,
    scaled as scaled,
    shifted as shifted,
    unpromoting as unpromoting,
)


def shifted_relu(x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Compute relu(x + b₁) + b₂ by one function; None where operators are as fast.

    b₁ and b₂ have one element or are None; the result has the shape of x.
    """
    if kernels_fit(x, before, after):
        return cast(Tensor, ShiftedReLUOnCuda.apply(x, before, after))
    return cast(Tensor, ShiftedReLU.apply(x, before, after)) if is_faster(x, before, after) else None


def shifted_convolution(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any, groups: int = 1
) -> Tensor | None:
    """Compute the convolution of x + b₁ without storing x + b₁; None where operators are as fast.

    x has shape (B, C, …) and b₁ one element; `settings` are stride, padding (of zeros) and dilation.
    """
    if not is_faster(x, shift, weight, bias):
        return None
    return added_to_convolution(x, shift, weight, bias, *settings, groups=groups)
