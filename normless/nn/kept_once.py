"""A ReLU and a convolution with scalar biases that keep one tensor for their backward pass, and pass over it once.

Written with operators, relu(x) + b and conv(x + b) each keep what they read besides what the next layer keeps, and
each bias is one more pass over the activations, in both directions. The functions below compute the same values;
`pays` says where they are faster. Second derivatives work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Below, the operators' own passes cost less than the calls that are saved.
SMALLEST = 2**15


def pays(x: Tensor, *parts: Tensor | None) -> bool:
    """Whether the functions here may take the place of operators: training on the CPU, eager, in one precision.

    Compilers, exports, `torch.func` and modes that watch operators see the operators.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.is_cpu
        and x.numel() >= SMALLEST
        and x.dtype in (torch.float32, torch.float64)
        and all(part is None or part.dtype == x.dtype for part in parts)
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch.autograd.forward_ad._current_level < 0
    )


class ShiftedReLU(torch.autograd.Function):
    """relu(x + b₁) + b₂ = max(x + (b₁ + b₂), b₂), of which backward needs the result alone.

    The gradient passes where the result is above b₂; b₁ and b₂ have one element each, b₁ may be None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, after: Tensor) -> Tensor:
        ctx.least = after.item()
        y: Tensor = (x + (ctx.least if before is None else ctx.least + before.item())).clamp_(min=ctx.least)
        ctx.save_for_backward(y)
        ctx.shape = after.shape
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradient, y, ctx.least)
        shifts = (passed if ctx.needs_input_grad[1] else None, gradient if ctx.needs_input_grad[2] else None)
        return passed, *(None if part is None else part.sum().reshape(ctx.shape) for part in shifts)


class ShiftedConvolution(torch.autograd.Function):
    """W ∗ (x + b₁) + b of zero-padded x, of which backward needs x and not x + b₁.

        dW = ∂W(x) + b₁ · S,    db₁ = Σ S · W,    S = ∂W(1)

    where ∂W(·) is the weight's gradient for an input: S, of the weight's shape, sums the gradient over the positions
    whose tap lies inside the input, and is computed for one example, of the gradient's sum over the batch. b₁ has one
    element; `settings` are stride, padding, dilation and groups.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
        ctx.settings, ctx.has_bias = settings, bias is not None
        ctx.save_for_backward(x, shift, weight)
        stride, padding, dilation, groups = settings
        unused = [0] * len(stride)
        return torch.convolution(x + shift, weight, bias, stride, padding, dilation, False, unused, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, shift, weight = ctx.saved_tensors
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[2], ctx.needs_input_grad[3])
        dx, dw, db = _derivatives(gradient, x, weight, needs, *ctx.settings)
        whole = x.new_ones(1, weight.shape[1] * ctx.settings[-1], *x.shape[2:])
        _, inside, _ = _derivatives(gradient.sum(0, keepdim=True), whole, weight, (False, True, False), *ctx.settings)
        dw = None if dw is None else dw + shift * inside
        return dx, (inside * weight).sum().reshape(shift.shape), dw, db, *[None] * len(ctx.settings)


def _derivatives(
    gradient: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool], *settings: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Those of a convolution by its input, weight and bias that are needed."""
    stride, padding, dilation, groups = settings
    unused = [0] * len(stride)
    derivatives: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.convolution_backward(
        gradient, x, weight, [weight.shape[0]], stride, padding, dilation, False, unused, groups, needs
    )
    return derivatives
