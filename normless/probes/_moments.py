"""Statistics of layer outputs, parameter gradients and logits, and the positions of layers for tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from normless.nn._channels import by_channel as by_channel, channel_axis, in_pieces
from normless.probes.hooks._watcher import PROBES, Setting, Watcher
from normless.residual import Layer, ResidualMap
from normless.residual._blocks import LayerKind

_OF_CHANNELS = (
    *(f"{moment}{part}" for moment in ("abs_mean", "variance") for part in ("", "_spread")),
    *("kurtosis", "always_on", "always_off", "dead"),
)
CHANNEL_COLUMNS = ("order", "layer", "block", "call", *_OF_CHANNELS)

_OF_GRADIENTS = ("norm", "mean_abs", "max_abs", "standard_deviation", "kurtosis", "parameter_norm")
GRADIENT_COLUMNS = ("parameter", "order", "layer", "block", "size", *_OF_GRADIENTS)


@dataclass(frozen=True)
class LayerPosition:
    """The position of a layer in execution order.

    Weight layers are counted as in the papers: the stem of a ResNet-110 is layer 1, its classifier layer 110.

    Attributes:
        layer: qualified name of the module.
        order: number among the layers of its kind in execution order, from 1.
        block: name of its outermost block, None outside blocks.
    """

    layer: str
    order: int | None
    block: str | None

    def columns(self) -> dict[str, Any]:
        """Return the first columns of a table of layers."""
        return {"order": self.order, "layer": self.layer, "block": self.block}


def layer_positions(residual_map: ResidualMap, kind: LayerKind = "weight") -> dict[Layer, LayerPosition]:
    """Return the positions of all layers of a kind; a module that runs several times has a position for each call."""
    blocks = _blocks(residual_map)
    layers = (layer for layer in residual_map.layers() if layer.kind == kind)
    return {layer: LayerPosition(layer.path, order, blocks.get(layer)) for order, layer in enumerate(layers, 1)}


def parameter_positions(model: nn.Module, residual_map: ResidualMap) -> dict[str, LayerPosition]:
    """Return the position of the first layer that reads each parameter, by the parameter's qualified name.

    `order` is None if that is not a weight layer; a parameter that no layer reads is at the module that owns it.
    """
    blocks, weights = _blocks(residual_map), layer_positions(residual_map)
    readers: dict[str, LayerPosition] = {}
    for layer in residual_map.layers():
        position = weights.get(layer, LayerPosition(layer.path, None, blocks.get(layer)))
        for name in layer.parameters:
            readers.setdefault(name, position)
    names = (name for name, _ in model.named_parameters())
    return {name: readers.get(name, LayerPosition(name.rpartition(".")[0], None, None)) for name in names}


def layer_table(rows: Iterable[Mapping[str, Any] | pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Combine rows, or tables with several rows, into a table with these columns; `order` is a nullable integer."""
    rows = list(rows)
    tables = [part for part in rows if isinstance(part, pd.DataFrame)]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(rows, columns=list(columns))
    return table[list(columns)].astype({"order": "Int64"})


def _blocks(residual_map: ResidualMap) -> dict[Layer, str]:
    return {layer: block.name for block in residual_map.blocks for layer in block.layers}


@dataclass
class _PositionedRows(Watcher):
    """A watcher with a row for every position of a layer or parameter that was measured."""

    columns: ClassVar[tuple[str, ...]]
    _positions: Mapping[Any, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    _numbers: dict[Any, tuple[dict[str, Any], Tensor]] = field(default_factory=dict, init=False, repr=False)

    def table(self) -> pd.DataFrame:
        """The rows in execution order, of parameters as in `named_parameters`; the columns are `columns`."""
        rows = []
        for key in filter(self._numbers.__contains__, self._positions):
            known, numbers = self._numbers[key]
            names = self.columns[-len(numbers) :]
            rows.append(known | self._positions[key].columns() | dict(zip(names, numbers.tolist(), strict=True)))
        return layer_table(rows, self.columns)


@PROBES.register("activations")
@dataclass
class ChannelMoments(_PositionedRows):
    """Channel means and variances of every layer's output, the statistics of a batch norm after it.

    With μ_c and σ²_c the mean and the biased variance of channel c over examples and positions (Bjorck et al.,
    figure 3): `abs_mean` is the mean of |μ_c| over channels and `variance` that of σ²_c; each `…_spread` the standard
    deviation over channels (the paper's error bars); `kurtosis` is E[(y - μ)⁴]/σ⁴ over all values, 3 for a normal
    distribution. `always_on`, `always_off` and `dead` are the shares of channels that are always positive, never
    positive, and constant (appendix I).

    Args:
        kind: of the layers to measure: weight layers, norms, activations, …
    """

    columns: ClassVar[tuple[str, ...]] = CHANNEL_COLUMNS

    kind: LayerKind = "weight"

    def on_start(self, setting: Setting) -> None:
        """Find the layers."""
        self._numbers, self._positions = {}, layer_positions(setting.map, self.kind)

    def wants(self, layer: Layer) -> bool:
        """Whether a layer is of the kind that is measured."""
        return layer.kind == self.kind

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Measure an output of shape (B, C, …) or (B, …, C)."""
        channel = channel_axis(module, y)
        numbers = _of_channels(y if y.dim() > 1 else y.unsqueeze(1), channel)
        self._numbers[layer] = {"call": layer.call}, numbers


@PROBES.register("gradients")
@dataclass
class GradientMoments(_PositionedRows):
    """Size and kurtosis of every parameter's gradient (Bjorck et al., section 3.1, figure 2).

    Over the elements g of a gradient: `norm` ‖g‖, `mean_abs` and `max_abs` of |g|, the biased `standard_deviation`,
    and `kurtosis` E[(g - ḡ)⁴]/Var[g]², 3 for a normal distribution; `parameter_norm` is the parameter's own.
    """

    columns: ClassVar[tuple[str, ...]] = GRADIENT_COLUMNS

    def on_start(self, setting: Setting) -> None:
        """Find the parameters."""
        self._numbers, self._positions = {}, parameter_positions(setting.model, setting.map)

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Measure a gradient."""
        wide = gradient.to_dense().to(torch.float64, copy=True).flatten()
        absolute = wide.abs()
        sizes = [wide.norm(), absolute.mean(), absolute.max()]
        power = wide.sub_(wide.mean()).square_()
        variance = power.mean()
        sizes += [variance.sqrt(), power.square_().mean() / variance.square(), parameter.double().norm()]
        self._numbers[name] = {"parameter": name, "size": wide.numel()}, torch.stack(sizes)


@PROBES.register("logits")
@dataclass
class LogitGradients(Watcher):
    """Logits z_j, predictions and gradients ∂L_b/∂z_j by class j, over the N examples b of a batch.

    Columns: `class`; `mean_logit` and `logit_deviation` (standard) over examples; `predicted_share`, the share of
    examples with the largest logit at j, and `favoured`, the class with the largest such share; `target_share`, NaN
    where targets are not class indices; `mean_abs_gradient` = (1/N) Σ_b |∂L_b/∂z_j|, with L = (1/N) Σ_b L_b;
    `gradient_share`, its part of the sum over classes; `bias_gradient` = (1/N) Σ_b ∂L_b/∂z_j, the gradient of a bias
    of class j; `agreement` = |bias_gradient| / mean_abs_gradient, 1 if all examples have one sign, near 1/√N for
    random signs (Bjorck et al., section 3.2; figure 4 shows that of a favoured class without normalization).

    Args:
        class_axis: the logits' class axis; all other axes count examples.
    """

    class_axis: int = -1
    _targets: Any = field(default=None, init=False, repr=False)
    _table: pd.DataFrame = field(default_factory=pd.DataFrame, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Store the targets."""
        self._targets = setting.targets

    def matrix(self, x: Tensor) -> Tensor:
        """Return logits or their gradient as a matrix (N, classes) in float64; N counts tokens or pixels too.

        Outputs of one axis, shape (N,), are those of one class.
        """
        if x.dim() < 2:
            return x.reshape(-1, 1).double()
        return x.movedim(self.class_axis, -1).flatten(0, -2).double()

    def labels(self, rows: int) -> Tensor | None:
        """Return the targets, shape (N,), if they are class indices."""
        targets = self._targets
        integers = isinstance(targets, Tensor) and not targets.is_floating_point() and not targets.is_complex()
        return targets.flatten() if integers and targets.numel() == rows else None

    def table(self) -> pd.DataFrame:
        """Return the rows of the last batch."""
        return self._table

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Measure logits and gradient of shape (…, classes) per class."""
        z, g = self.matrix(logits), self.matrix(gradient)
        classes, sizes = z.shape[1], g.abs().sum(0)
        shares = z.argmax(1).bincount(minlength=classes) / len(z)
        labels, known = self.labels(len(z)), torch.full_like(shares, torch.nan)
        if labels is not None:
            valid = labels[(labels >= 0) & (labels < classes)]
            known = (valid.bincount(minlength=classes) / max(len(labels), 1)).to(shares)
        columns = {
            "mean_logit": z.mean(0),
            "logit_deviation": z.std(0, correction=0),
            "predicted_share": shares,
            "target_share": known,
            "mean_abs_gradient": sizes,
            "gradient_share": sizes / g.abs().sum(),
            "bias_gradient": g.sum(0),
            "agreement": g.sum(0).abs() / sizes,
        }
        self._table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        self._table.insert(0, "class", range(classes))
        self._table["favoured"] = self._table.index == int(shares.argmax())


def agreement(by_class: pd.DataFrame) -> float:
    """Σ_j |Σ_b ∂L_b/∂z_j| / Σ_jb |∂L_b/∂z_j|: 1 for gradients independent of the example, near 0 for cancelling ones.

    Args:
        by_class: the table of `LogitGradients`.
    """
    return float(by_class["bias_gradient"].abs().sum() / by_class["mean_abs_gradient"].sum())


def _of_channels(y: Tensor, channel: int) -> Tensor:
    """Return the numbers `_OF_CHANNELS` of an output, combined from moments by channel."""
    # In units of the largest output, so that a variance of 2^200 and fourth powers stay finite.
    others = tuple(axis for axis in range(y.dim()) if axis != channel)
    low, high = y.amin(others).double(), y.amax(others).double()
    scale = torch.maximum(low.abs(), high.abs()).max()
    scale = torch.where(scale > 0, scale, 1.0)
    dtype, count = torch.promote_types(y.dtype, torch.float32), y.numel() // y.shape[channel]
    pieces, unit = in_pieces(y), scale.to(dtype)
    averages = torch.stack([(piece / unit).sum(others, keepdim=True, dtype=dtype) for piece in pieces]).sum(0) / count
    powers = []
    for piece in pieces:
        deviations = (piece / unit).sub_(averages)
        power = deviations.square()
        second = power.sum(others)
        powers.append(torch.stack([second, deviations.mul_(power).sum(others), power.square_().sum(others)]))
    second, third, fourth = torch.stack(powers).double().sum(0) / count
    mean = averages.flatten().double()
    apart = mean - mean.mean()
    whole = (second + apart.square()).mean()
    fourths = fourth + 4 * apart * third + 6 * apart.square() * second + apart.pow(4)
    sizes = [mean.abs() * scale, second * scale.square()]
    spread = [moment for values in sizes for moment in (values.mean(), values.std(correction=0))]
    shares = [mask.double().mean() for mask in (low > 0, high <= 0, low == high)]
    return torch.stack([*spread, fourths.mean() / whole.square(), *shares])
