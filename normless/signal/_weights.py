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
from normless.recording._modules import Observer
from normless.residual._graph import Fixed
from normless.signal._moments import Moments
from normless.signal._propagation import Propagation
from normless.state import in_mode

LINEAR = ("linear", "conv1d", "conv2d", "conv3d")


def weighted_moments(p: Propagation, at: int, x: Moments) -> Moments | None:
    """Return the moments after a linear layer or convolution: E[y] = W∗E[x] + b and Var[y] = W²∗Var[x].

    Fluctuations of different inputs are assumed to be uncorrelated, which holds on average over weights of random
    sign. The result is None for other operations, and if W is not known, see `_weight_and_bias`.
    """
    operation = p.flow[at]
    known = _weight_and_bias(p, at) if operation.name in LINEAR else None
    if known is None:
        return None
    weight, bias = known[0].to(x.mean), None if known[1] is None else known[1].to(x.mean)
    multiply, settings = getattr(F, operation.name), operation.arguments[3:]
    mean = multiply(x.mean, weight, bias, *settings)
    variance, noise = multiply(torch.cat([x.variance, x.noise]), weight.square(), None, *settings).split(1)
    return Moments(mean, variance, noise, split=x.split)


def _weight_and_bias(p: Propagation, at: int) -> tuple[Tensor, Tensor | None] | None:
    """Return W and b of an operation: parameters, or what the layer computes from its parameters.

    They are standardized, normalized or masked, with the layer's scalars, as in its forward pass on zeros. They are
    unknown if the forward code of the layer multiplies several times.
    """
    weight, bias = (*p.flow[at].arguments[1:3], None)[:2]
    if all(part is None or (isinstance(part, Fixed) and part.is_parameter) for part in (weight, bias)):
        get = p.model.get_parameter
        return get(weight.parameters[0]), None if bias is None else get(bias.parameters[0])
    module, shape = p.module(at), p.flow[min(p.layers.inputs(at))].shape
    if shape is None or not isinstance(module, (_ConvNd, nn.Linear, ScalarAffine)):
        return None
    reading = _Reading()
    # Hooks may compute the weight, and a batch norm before the layer needs two examples.
    with in_mode(module, p.training), reading:
        module(next(module.parameters()).new_zeros(2, *shape[1:]))
    return reading.found[0] if len(reading.found) == 1 else None


class _Reading(Observer):
    """Note the weights and biases by which forward code multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor | None]] = []

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in LINEAR:
            named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            self.found.append((named["weight"], named.get("bias")))
        return function(*args, **kwargs)


@dataclass(frozen=True)
class Rows:
    """The weights of a layer, with a row for each output.

    Attributes:
        weight: the name of the weight parameter; None if the weight is not proportional to it (standardization).
        bias: the name of the bias, or None.
        sums, squares: Σ w and Σ w² over taps, shape (outputs, inputs of a group, 1), float32.
        groups: the number of groups of inputs; each output reads one group.
        shifts: the biases, shape (outputs,).
        share: the share of a convolution's taps that lie inside its input and not on padding.
    """

    weight: str | None
    bias: str | None
    sums: Tensor
    squares: Tensor
    groups: int
    shifts: Tensor
    share: float

    def applied(self, x: Moments, factor: float = 1.0, shift: float = 1.0) -> Moments:
        """Return the moments of the output, shape (1, outputs): mean Σ w m + b, variance Σ w² v, independent inputs.

        Weights are multiplied by `factor`, biases by `shift`.
        """
        read = x.with_channels(self.groups * self.sums.shape[1])
        # In units of the input, since float32 ends at 1e38.
        unit = abs(read.power) ** 0.5 or 1.0
        mean, variance = (
            size * F.conv1d((values / size).float().unsqueeze(2), rows, groups=self.groups).squeeze(2).double()
            for values, rows, size in ((read.mean, self.sums, unit), (read.variance, self.squares, unit**2))
        )
        mean = factor * self.share**0.5 * mean + shift * self.shifts
        return Moments.of(mean, factor**2 * self.share * variance)


def rows_of(p: Propagation, at: int) -> Rows:
    """Return the rows of a weight layer, computed once.

    Raises:
        MissingValuesError: its weight has no values.
    """
    if at not in p.rows:
        p.rows[at] = _rows_of(p, at)
    rows: Rows = p.rows[at]
    return rows


@torch.no_grad()
def _rows_of(p: Propagation, at: int) -> Rows:
    operation, path, first = p.flow[at], p.place(at), p.layers.names.parameter
    degrees = {first(name): degree for part in operation.fixed for name, degree in part.degrees}
    name = p.layers.names.weight_of(operation.parameters)
    used = p.model.get_parameter(name).detach()
    if used.is_meta:
        raise MissingValuesError(f"The weight {name} has no values.")
    if operation.name in LINEAR and (known := _weight_and_bias(p, at)) is not None:
        used = known[0].detach()
    rows, module = used.cpu().float(), p.model.get_submodule(path) if ":" not in path else None
    groups = module.groups if isinstance(module, _ConvNd) else 1
    if isinstance(module, _ConvTransposeNd):
        # The weight is (inputs, outputs of a group, …), and one output meets a share of the taps.
        share = 1 / torch.Size(module.stride).numel()
        rows = share**0.5 * rows.reshape(groups, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 1)
    elif operation.name == "addmm":
        rows = rows.transpose(0, 1)
    rows = rows.reshape(rows.shape[0], rows.shape[1] if rows.dim() > 1 else 1, -1)
    added = {first(own): p.model.get_parameter(own).detach() for own in operation.added}
    bias = next((own for own, value in added.items() if own != name and value.numel() == len(rows)), None)
    # A sum over a single tap would be the slowest operation here.
    sums, squares = (part if part.shape[2] == 1 else part.sum(2, keepdim=True) for part in (rows, rows.square()))
    shifts = torch.zeros(len(rows), dtype=torch.float64) if bias is None else added[bias].double().cpu()
    is_scaled = degrees.get(name) == 1.0
    return Rows(name if is_scaled else None, bias, sums, squares, groups, shifts, _inside(p, at, used))


def _inside(p: Propagation, at: int, weight: Tensor) -> float:
    """Return the share of a convolution's taps that lie inside its input and not on padding."""
    operation, shape = p.flow[at], p.flow[p.reads[at][0]].shape
    sizes = operation.arguments[3:6]
    # A padding may be a string.
    plain = operation.name in LINEAR[1:] and all(isinstance(size, tuple) for size in sizes)
    if not plain or shape is None or len(shape) != weight.dim():
        return 1.0
    image, kernel = torch.ones(1, 1, *shape[2:]), torch.ones(1, 1, *weight.shape[2:])
    taps = getattr(F, operation.name)(image, kernel, None, *sizes)
    return float(taps.double().mean()) / kernel.numel()
