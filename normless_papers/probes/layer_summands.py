"""The tensor that a weight layer multiplies by its weight, and the summands of that weight's gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd

from normless.nn import ScalarAffine
from normless_papers.probes.summands import Summands


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
