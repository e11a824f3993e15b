"""What a weight layer does to the mean and variance of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from normless.nn.affine import is_transposed
from normless.signal.channels import Channels
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
    """The weights of a layer, a row for each of its outputs.

    Attributes:
        weight: the name of the parameter that is the weight; None where the layer computes its weight from
            parameters, by standardization or spectral norm, and their scale is not the weight's.
        bias: the name of the bias, or None.
        values: the weights, shape (outputs, inputs of a group, taps).
        groups: of inputs; each output reads one.
        scale: the share of the taps that one output meets: less than 1 for a transposed convolution with a stride.
        shifts: the biases, shape (outputs,).
    """

    weight: str | None
    bias: str | None
    values: Tensor
    groups: int
    scale: float
    shifts: Tensor

    def applied(self, x: Channels, factor: float, shift: float, share: float) -> Channels:
        """The channels of the output: mean Σ w m + b and variance Σ w² v of inputs that fluctuate independently.

        Args:
            x: the input.
            factor, shift: what weights and biases are multiplied by.
            share: of the inputs, those that are not zeros around an image.
        """
        outputs, inputs = self.values.shape[:2]
        read = x.of(self.groups * inputs)
        mean, variance = (
            one.reshape(self.groups, 1, inputs).expand(-1, outputs // self.groups, -1).reshape(outputs, inputs)
            for one in (read.mean, read.variance)
        )
        share = share * self.scale
        means = factor * share**0.5 * (self.values.sum(2).double() * mean).sum(1) + shift * self.shifts
        return Channels(means, factor**2 * share * (self.values.square().sum(2).double() * variance).sum(1))


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
    rows = used.cpu().float()
    groups, scale = module.groups if isinstance(module, _ConvNd) else 1, 1.0
    if isinstance(module, _ConvTransposeNd):
        scale = 1 / torch.Size(module.stride).numel()
        # (inputs, outputs of a group, …)
        parts = rows.reshape(groups, rows.shape[0] // groups, rows.shape[1], -1)
        rows = parts.transpose(1, 2).flatten(0, 1)
    elif module is not None and is_transposed(module):
        rows = rows.transpose(0, 1)
    rows = rows.reshape(rows.shape[0], rows.shape[1] if rows.dim() > 1 else 1, -1)
    biases = [one for one in named if one != name and one.endswith("bias") and named[one].numel() == len(rows)]
    bias = biases[0] if biases else None
    return Rows(
        weight=name if used.data_ptr() == parameter.data_ptr() else None,
        bias=bias,
        values=rows,
        groups=groups,
        scale=scale,
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
