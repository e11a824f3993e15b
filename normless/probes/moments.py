"""Moments of layer outputs and of parameter gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.nn.channels import channel_axis
from normless.probes.hooks.positions import LayerPosition, layer_positions, layer_table, parameter_positions
from normless.probes.hooks.watcher import PROBES, Setting, Watcher
from normless.residual import Layer
from normless.residual.blocks import Kind

_OF_CHANNELS = (
    *(f"{moment}{part}" for moment in ("abs_mean", "variance") for part in ("", "_spread")),
    *("kurtosis", "always_on", "always_off", "dead"),
)
CHANNEL_COLUMNS = ("order", "layer", "block", "call", *_OF_CHANNELS)

_OF_GRADIENTS = ("norm", "mean_abs", "max_abs", "standard_deviation", "kurtosis", "parameter_norm")
GRADIENT_COLUMNS = ("parameter", "order", "layer", "block", "size", *_OF_GRADIENTS)


@PROBES.register("activations")
@dataclass
class ChannelMoments(Watcher):
    """Channel means and variances of every layer's output, the statistics of a batch norm after it.

    With μ_c and σ²_c the mean and the biased variance of channel c over examples and positions (Bjorck et al.,
    figure 3): `abs_mean` is the mean of |μ_c| over channels, in units of the output; `variance` that of σ²_c, in
    units squared; each `…_spread` the standard deviation over channels (the paper's error bars); `kurtosis` is
    E[(y - μ)⁴]/σ⁴ over all values: 3 for a normal distribution, more for heavier tails. `always_on`, `always_off` and
    `dead` are the shares of channels that are always positive, never positive, and constant (appendix I).

    Args:
        kind: of the layers to measure: weight layers, norms, activations, …
    """

    kind: Kind = "weight"
    _numbers: dict[Layer, Tensor] = field(default_factory=dict, init=False, repr=False)
    _positions: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find the layers."""
        self._numbers, self._positions = {}, layer_positions(setting.map, self.kind)

    def wants(self, layer: Layer) -> bool:
        """Layers of one kind."""
        return layer.kind == self.kind

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Reduce an output, shape (B, C, …) or (B, …, C), to its numbers."""
        channel = channel_axis(module, y)
        self._numbers[layer] = _of_channels(y if y.dim() > 1 else y.unsqueeze(1), channel)

    def table(self) -> pd.DataFrame:
        """A row per layer and call in execution order; the columns are `CHANNEL_COLUMNS`."""
        measured = dict(zip(self._numbers, _to_lists(list(self._numbers.values())), strict=True))
        rows = [
            position.columns() | {"call": layer.call} | dict(zip(_OF_CHANNELS, measured[layer], strict=True))
            for layer, position in self._positions.items()
            if layer in measured
        ]
        return layer_table(rows, CHANNEL_COLUMNS)


@PROBES.register("gradients")
@dataclass
class GradientMoments(Watcher):
    """Size and kurtosis of every parameter's gradient (Bjorck et al., section 3.1, figure 2).

    Over the elements g of a gradient: `norm` ‖g‖, `mean_abs` and `max_abs` of |g|, the biased `standard_deviation`,
    and `kurtosis` E[(g - ḡ)⁴]/Var[g]², 3 for a normal distribution; `parameter_norm` is the parameter's own.
    """

    _numbers: dict[str, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)
    _positions: dict[str, LayerPosition] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find the parameters."""
        self._numbers, self._positions = {}, parameter_positions(setting.model, setting.map)

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Reduce a gradient to its numbers."""
        wide = gradient.to_dense() if gradient.layout != torch.strided else gradient
        wide = wide.to(torch.float64, copy=True).flatten()
        sizes = [wide.norm(), wide.abs().mean(), wide.abs().max(), wide.std(correction=0)]
        self._numbers[name] = wide.numel(), torch.stack([*sizes, _kurtosis(wide), parameter.double().norm()])

    def table(self) -> pd.DataFrame:
        """A row per parameter with a gradient, as in `named_parameters`; the columns are `GRADIENT_COLUMNS`."""
        names = [name for name in self._positions if name in self._numbers]
        numbers = _to_lists([self._numbers[name][1] for name in names])
        rows: list[dict[str, Any]] = []
        for name, values in zip(names, numbers, strict=True):
            row = {"parameter": name, **self._positions[name].columns(), "size": self._numbers[name][0]}
            rows.append(row | dict(zip(_OF_GRADIENTS, values, strict=True)))
        return layer_table(rows, GRADIENT_COLUMNS)


def _of_channels(y: Tensor, channel: int) -> Tensor:
    """The numbers `_OF_CHANNELS` of an output, combined from moments by channel.

    Computed in units of the largest output, so that a variance of 2^200 and fourth powers stay finite.
    """
    others = tuple(axis for axis in range(y.dim()) if axis != channel)
    low, high = y.amin(others).double(), y.amax(others).double()
    scale = torch.maximum(low.abs(), high.abs()).max()
    scale = torch.where(scale > 0, scale, 1.0)
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    deviations = wide / scale.to(wide.dtype)
    averages = deviations.mean(others, keepdim=True)
    deviations.sub_(averages)
    power = deviations.square()
    second = power.mean(others).double()
    third = deviations.mul_(power).mean(others).double()
    fourth = power.square_().mean(others).double()
    mean = averages.flatten().double()
    apart = mean - mean.mean()
    whole = (second + apart.square()).mean()
    fourths = fourth + 4 * apart * third + 6 * apart.square() * second + apart.pow(4)
    sizes = [mean.abs() * scale, second * scale.square()]
    spread = [moment for values in sizes for moment in (values.mean(), values.std(correction=0))]
    shares = [mask.double().mean() for mask in (low > 0, high <= 0, low == high)]
    return torch.stack([*spread, fourths.mean() / whole.square(), *shares])


def _kurtosis(values: Tensor) -> Tensor:
    """The kurtosis of all values of a tensor, which is overwritten; NaN for a constant."""
    power = values.sub_(values.mean()).square_()
    variance = power.mean()
    return power.square_().mean() / variance.square()


def _to_lists(stacked: list[Tensor]) -> list[list[float]]:
    """Rows of numbers, copied from the device at once."""
    rows: list[list[float]] = torch.stack([row.cpu() for row in stacked]).tolist() if stacked else []
    return rows
