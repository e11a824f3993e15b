"""What a weight layer does to the second moment of its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from normless.nn.affine import is_transposed
from normless.signal.steps import Step

_AS_THEY_ARE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class Rows:
    """The weights of a layer, summed over what each of its outputs reads.

    Attributes:
        weight: the name of the parameter that is the weight; None where the layer computes its weight from
            parameters, by standardization or spectral norm, and their scale is not the weight's.
        bias: the name of the bias, or None.
        sums, squares: of a row's weights and of their squares, shape (outputs,).
        shifts: the biases, shape (outputs,).
    """

    weight: str | None
    bias: str | None
    sums: Tensor
    squares: Tensor
    shifts: Tensor

    def second(self, mean: float, variance: float, factor: float, shift: float, share: float) -> float:
        """The second moment of an output, averaged over outputs: (mΣw + b)² + vΣw².

        Inputs fluctuate independently, which holds on average over weights of random sign.

        Args:
            mean, variance: of an input.
            factor, shift: what weights and biases are multiplied by.
            share: of the inputs, those that are not zeros around an image.
        """
        fixed = (factor * mean * self.sums * share**0.5 + shift * self.shifts).square().mean()
        return float(fixed + share * variance * factor**2 * self.squares.mean())


@torch.no_grad()
def rows_of(model: nn.Module, step: Step) -> Rows:
    """The rows of the weight layer that a step is.

    Raises:
        RuntimeError: its weight has no values, as on torch's device `meta`.
    """
    named = {name: model.get_parameter(name).detach() for name in step.parameters}
    name = max(named, key=lambda one: named[one].numel())
    parameter = named[name]
    if parameter.is_meta:
        raise RuntimeError(f"The weight {name} has no values.")
    module = model.get_submodule(step.path) if ":" not in step.path else None
    used = _used(module, parameter) if isinstance(module, (_ConvNd, nn.Linear)) else parameter
    rows, scale = used.double(), 1.0
    if isinstance(module, _ConvTransposeNd):
        scale = 1 / (module.groups * torch.Size(module.stride).numel())
        rows = rows.transpose(0, 1)
    elif module is not None and is_transposed(module):
        rows = rows.transpose(0, 1)
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    biases = [one for one in named if one != name and one.endswith("bias") and named[one].numel() == len(rows)]
    bias = biases[0] if biases else None
    return Rows(
        weight=name if used is parameter or torch.equal(used, parameter) else None,
        bias=bias,
        sums=(rows.sum(1) * scale).cpu(),
        squares=(rows.square().sum(1) * scale).cpu(),
        shifts=torch.zeros(len(rows), dtype=torch.float64) if bias is None else named[bias].double().cpu(),
    )


def _used(module: _ConvNd | nn.Linear, parameter: Tensor) -> Tensor:
    """The weight that a layer multiplies by, seen where it does so on an input of one position."""
    if type(module) in _AS_THEY_ARE:
        return parameter
    size: Any = [1, module.in_features]
    if isinstance(module, _ConvNd):
        reach = [(side - 1) * step + 1 for side, step in zip(module.kernel_size, module.dilation, strict=True)]
        size = [1, module.in_channels, *reach]
    seen = _SeesWeight()
    with seen:
        module.forward(parameter.new_zeros(size))
    return parameter if seen.weight is None else seen.weight


class _SeesWeight(TorchFunctionMode):
    """Keeps the weight of the last convolution or linear map."""

    weight: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("linear", "conv1d", "conv2d", "conv3d"):
            self.weight = kwargs["weight"] if "weight" in kwargs else args[1]
        return func(*args, **kwargs)
