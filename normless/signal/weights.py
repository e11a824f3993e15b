"""Mean and variance of the output of a weight layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.errors import MissingValuesError
from normless.nn import ScalarAffine
from normless.nn.affine import is_transposed
from normless.recording import Observer
from normless.signal.moments import Moments
from normless.signal.steps import Step

_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **{f"conv{n}d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups") for n in (1, 2, 3)},
}


def weighted_moments(module: nn.Module, moments: Tensor) -> Tensor | None:
    """Return the moments after a linear layer or convolution: E[y] = W∗E[x] + b and Var[y] = W²∗Var[x].

    Fluctuations of different inputs are assumed to be uncorrelated, which holds on average over weights of random
    sign. W is the weight that the layer computes from its parameters: standardized, normalized or masked, with its
    scalars. `moments` are means and several variances, stacked, shape (k, …). The result is None if the module does
    more than pad and multiply by a weight once.
    """
    if isinstance(module, _ConvTransposeNd) or not isinstance(module, (_ConvNd, nn.Linear)):
        return None
    if isinstance(module, ScalarAffine) and module.input_bias is not None:
        moments = torch.cat([moments[:1] + module.input_bias.double(), moments[1:]])
    return _multiplied(module, moments).product


def _multiplied(module: _ConvNd | nn.Linear, moments: Tensor) -> _OnMoments:
    through = _OnMoments(moments)
    with through:
        if isinstance(module, ScalarAffine):
            multiply = module._conv_forward if isinstance(module, _ConvNd) else F.linear
            result = multiply(moments, *module.folded())
        else:
            result = module.forward(moments)
    if result is not through.product:
        through.product = None
    return through


class _OnMoments(Observer):
    """Let a layer's forward code multiply means by its weight, and variances by the squared weight."""

    def __init__(self, moments: Tensor) -> None:
        super().__init__()
        self.moments = moments
        self.product: Tensor | None = None
        self.weight: Tensor | None = None

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call; multiply the moments if it is the layer's product."""
        if name in _ARGUMENTS:
            named = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
            self.weight = named["weight"]
            if named.pop("input") is self.moments:
                self.product = self._multiply(function, **named)
                return self.product
        result = function(*args, **kwargs)
        if name == "pad" and args and args[0] is self.moments:
            self.moments = result
        return result

    def _multiply(self, func: Any, *, weight: Tensor, bias: Tensor | None = None, **rest: Any) -> Tensor:
        wide = weight.to(self.moments)
        mean = func(self.moments[:1], wide, None if bias is None else bias.to(self.moments), **rest)
        return torch.cat([mean, func(self.moments[1:], wide.square(), None, **rest)])


@dataclass(frozen=True)
class Rows:
    """The weights of a layer, with a row for each output.

    Attributes:
        weight: the name of the weight parameter; None if the weight is computed, as by standardization.
        bias: the name of the bias, or None.
        sums, squares: Σ w and Σ w² over taps, shape (outputs, inputs of a group, 1), float32.
        groups: the number of groups of inputs; each output reads one group.
        shifts: the biases, shape (outputs,).
    """

    weight: str | None
    bias: str | None
    sums: Tensor
    squares: Tensor
    groups: int
    shifts: Tensor

    def applied(self, x: Moments, factor: float, shift: float, share: float) -> Moments:
        """Return the moments of the output, shape (1, outputs): mean Σ w m + b, variance Σ w² v, independent inputs.

        Weights are multiplied by `factor`, biases by `shift`; `share` is the share of inputs that are not padding.
        """
        read = x.with_channels(self.groups * self.sums.shape[1])
        # In units of the input, since float32 ends at 1e38.
        unit = abs(read.power) ** 0.5 or 1.0
        mean, variance = (
            size * F.conv1d((values / size).float().unsqueeze(2), rows, groups=self.groups).squeeze(2).double()
            for values, rows, size in ((read.mean, self.sums, unit), (read.variance, self.squares, unit**2))
        )
        return Moments.of(factor * share**0.5 * mean + shift * self.shifts, factor**2 * share * variance)


@torch.no_grad()
def rows_of(model: nn.Module, step: Step) -> Rows:
    """Return the rows of a step's weight layer.

    Raises:
        MissingValuesError: its weight has no values.
    """
    named = {name: model.get_parameter(name).detach() for name in step.parameters}
    name = max(named, key=lambda parameter_name: named[parameter_name].numel())
    parameter = named[name]
    if parameter.is_meta:
        raise MissingValuesError(f"The weight {name} has no values.")
    module = model.get_submodule(step.path) if ":" not in step.path else None
    used = _used(module, parameter) if isinstance(module, (_ConvNd, nn.Linear)) else parameter
    rows = used.cpu().float()
    groups = module.groups if isinstance(module, _ConvNd) else 1
    if isinstance(module, _ConvTransposeNd):
        # The weight is (inputs, outputs of a group, …), and one output meets a share of the taps.
        share = 1 / torch.Size(module.stride).numel()
        rows = share**0.5 * rows.reshape(groups, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 1)
    elif module is not None and is_transposed(module):
        rows = rows.transpose(0, 1)
    rows = rows.reshape(rows.shape[0], rows.shape[1] if rows.dim() > 1 else 1, -1)
    bias = next(
        (
            parameter_name
            for parameter_name in named
            if parameter_name in step.shifts and named[parameter_name].numel() == len(rows)
        ),
        None,
    )
    # A sum over a single tap would be the slowest operation here.
    sums, squares = (
        tensor if tensor.shape[2] == 1 else tensor.sum(2, keepdim=True) for tensor in (rows, rows.square())
    )
    return Rows(
        weight=name if used.data_ptr() == parameter.data_ptr() else None,
        bias=bias,
        sums=sums,
        squares=squares,
        groups=groups,
        shifts=torch.zeros(len(rows), dtype=torch.float64) if bias is None else named[bias].double().cpu(),
    )


def _used(module: _ConvNd | nn.Linear, parameter: Tensor) -> Tensor:
    """Return the weight by which a layer multiplies, read from its forward pass on zeros at one position."""
    if type(module).__module__.startswith("torch.nn.modules"):
        # Torch's own layers multiply by the parameter itself.
        return parameter
    size: list[int] = [1, module.in_features] if isinstance(module, nn.Linear) else [1, module.in_channels]
    if isinstance(module, _ConvNd):
        size += [(side - 1) * step + 1 for side, step in zip(module.kernel_size, module.dilation, strict=True)]
    weight = _multiplied(module, parameter.new_zeros(size)).weight
    return parameter if weight is None else weight
