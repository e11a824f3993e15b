"""Moments of what layers put out and of the gradients of parameters, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes.hooks.channels import channel_axis
from normless.probes.hooks.layer_order import Place, in_order, parameter_places, places
from normless.probes.hooks.observe import Loss, observe
from normless.probes.hooks.watcher import Setting, Watcher
from normless.residual import Layer, ResidualMap
from normless.residual.blocks import Kind

_OF_CHANNELS = (
    "abs_mean",
    "abs_mean_spread",
    "variance",
    "variance_spread",
    "kurtosis",
    "always_on",
    "always_off",
    "dead",
)
CHANNEL_COLUMNS = ("order", "layer", "block", "call", *_OF_CHANNELS)

_OF_GRADIENTS = ("norm", "mean_abs", "max_abs", "standard_deviation", "kurtosis", "parameter_norm")
GRADIENT_COLUMNS = ("parameter", "order", "layer", "block", "size", *_OF_GRADIENTS)


@dataclass
class ChannelMoments(Watcher):
    """Mean and variance of the channels of every layer's output: what a norm behind it measures, or would measure.

    With μ_c and σ²_c the mean and the biased variance of channel c over examples and positions (Bjorck et al.,
    figure 3): `abs_mean` is the mean of |μ_c| over channels, in units of the output, `variance` that of σ²_c, in
    its square, and each `…_spread` the standard deviation over channels, the paper's error bars. `kurtosis` is
    E[(y - μ)⁴]/σ⁴ over all of the output together: 3 for a normal distribution, more for heavier tails.
    `always_on` is the share of channels that are above 0 throughout, `always_off` of those that never are (appendix
    I: a ReLU behind would do nothing, or shut them), `dead` of those that do not vary at all.

    Args:
        kind: of which layers; for activations `dead` is the share of channels that they have shut.
    """

    kind: Kind = "weight"
    _found: dict[Layer, Tensor] = field(default_factory=dict, init=False, repr=False)
    _places: dict[Layer, Place] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Number the layers."""
        self._found, self._places = {}, places(setting.map, self.kind)

    def wants(self, layer: Layer) -> bool:
        """The layers of the kind."""
        return layer.kind == self.kind

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Reduce an output, shape (B, C, …) or (B, …, C), to its numbers."""
        channel = channel_axis(module, y)
        self._found[layer] = _of_channels(y if y.dim() > 1 else y.unsqueeze(1), channel)

    def table(self) -> pd.DataFrame:
        """A row per layer, and per call of one that runs several times, in execution order; `CHANNEL_COLUMNS`."""
        measured = dict(zip(self._found, _numbers(list(self._found.values())), strict=True))
        rows = [
            place.columns() | {"call": layer.call} | dict(zip(_OF_CHANNELS, measured[layer], strict=True))
            for layer, place in self._places.items()
            if layer in measured
        ]
        return in_order(pd.DataFrame(rows, columns=list(CHANNEL_COLUMNS)))


@dataclass
class GradientMoments(Watcher):
    """The size of every parameter's gradient, and how heavy its tails are (Bjorck et al., section 3.1, figure 2).

    Of the elements g of one gradient: `norm` is ‖g‖, `mean_abs` and `max_abs` are of |g|, `standard_deviation` is
    biased, `kurtosis` is E[(g - ḡ)⁴]/Var[g]², 3 for a normal distribution. `parameter_norm` is that of the parameter.
    """

    _found: dict[str, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)
    _places: dict[str, Place] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Remember where parameters are."""
        self._found, self._places = {}, parameter_places(setting.model, setting.map)

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Reduce a gradient to its numbers."""
        wide = gradient.to_dense() if gradient.layout != torch.strided else gradient
        wide = wide.to(torch.float64, copy=True).flatten()
        sizes = [wide.norm(), wide.abs().mean(), wide.abs().max(), wide.std(correction=0)]
        self._found[name] = wide.numel(), torch.stack([*sizes, _kurtosis(wide), parameter.double().norm()])

    def table(self) -> pd.DataFrame:
        """A row per parameter that has a gradient, in the order of `named_parameters`; `GRADIENT_COLUMNS`."""
        found = [name for name in self._places if name in self._found]
        numbers = _numbers([self._found[name][1] for name in found])
        rows: list[dict[str, Any]] = []
        for name, values in zip(found, numbers, strict=True):
            row = {"parameter": name, **self._places[name].columns(), "size": self._found[name][0]}
            rows.append(row | dict(zip(_OF_GRADIENTS, values, strict=True)))
        return in_order(pd.DataFrame(rows, columns=list(GRADIENT_COLUMNS)))


def channel_moments(
    model: nn.Module,
    inputs: Any,
    *,
    kind: Kind = "weight",
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """What `ChannelMoments` measures on one batch; the network is left as it was.

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        kind: of which layers.
        residual_map: the network's map, found where it is not given.
        training: whether norms use the batch's statistics.
    """
    watcher = ChannelMoments(kind)
    observe(model, [watcher], inputs, residual_map=residual_map, training=training)
    return watcher.table()


def gradient_moments(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """What `GradientMoments` measures on one batch; arguments and errors are those of `observe`."""
    watcher = GradientMoments()
    observe(model, [watcher], inputs, targets, loss=loss, residual_map=residual_map, training=training)
    return watcher.table()


def _of_channels(y: Tensor, channel: int) -> Tensor:
    """The numbers `_OF_CHANNELS` of an output, whose moments are taken by channel and put together.

    In units of the largest output, so that neither a variance of 2^200 nor a fourth power leaves the floats.
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
    """Of all of a tensor, which is overwritten; NaN where it does not vary."""
    power = values.sub_(values.mean()).square_()
    variance = power.mean()
    return power.square_().mean() / variance.square()


def _numbers(stacked: list[Tensor]) -> list[list[float]]:
    """Rows of numbers, from the device at once."""
    found: list[list[float]] = torch.stack([row.cpu() for row in stacked]).tolist() if stacked else []
    return found
