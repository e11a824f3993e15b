"""Tables of weight layers, and of the summands of their weights' gradients.

Agreement of the summands of a weight's gradient: four sums per layer, which differ in the place of the modulus.

The gradient of a weight is a sum of d over examples b and positions xy (equation 4 of "Understanding batch
normalization", Bjorck et al. 2018). If all have the same sign, |Σ_bxy d| = Σ_bxy |d|. At initialization the ratio is
near 1 in deep unnormalized networks and near 10⁻² with batch normalization (tables 1 and 4).

Gradients of a layer's parameters, the sums of their summands, and the channels that they read.

Tables 1 and 4 of "Understanding batch normalization" (Bjorck et al. 2018) are averages of these; its figures 18
(gradient against the mean of the channel before ReLU) and 23 (|Σd| against Σ|d|) scatter them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from normless.probes import LayerPosition, Setting, Watcher, by_channel, layer_positions, layer_table
from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved
from normless_lab.plots import Law, Plot
from normless_papers.probes.network_function import require_known
from normless_papers.probes.summands import Summands, SummandTotals, UnknownSummandsError, summands_of

LAYER_COLUMNS = ("order", "layer", "block", "call")
SUM_COLUMNS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")


def by_layer(table: pd.DataFrame, numbers: Callable[[pd.DataFrame], Mapping[str, Any]]) -> pd.DataFrame:
    """Compute a row of numbers per layer and call, in execution order."""
    keys = ["order", "layer", "call"]
    groups = table.groupby(keys)
    return pd.DataFrame([dict(zip(keys, key, strict=True)) | dict(numbers(rows)) for key, rows in groups])


@dataclass
class LayerTables(Watcher):
    """A watcher of some weight layers of a network; a subclass adds rows with `add`.

    Args:
        layers: paths of the weight layers to measure; None for all.

    Raises:
        ValueError: a path is not that of a weight layer; raised when the pass starts.
    """

    columns: ClassVar[tuple[str, ...]] = ()

    layers: Collection[str] | None = None
    _places: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    # Rows, or tables of several rows.
    _parts: list[dict[str, Any] | pd.DataFrame] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        places = layer_positions(setting.map)
        paths = dict.fromkeys(layer.path for layer in places)
        require_known(self.layers, paths, "weight layer")
        chosen = paths if self.layers is None else self.layers
        self._places = {layer: place for layer, place in places.items() if layer.path in chosen}
        self._parts = []

    def wants(self, layer: Layer) -> bool:
        return layer in self._places

    def add(self, layer: Layer, numbers: Mapping[str, Any]) -> None:
        """Add a layer's row of numbers, or a row per element of its arrays."""
        columns = self._places[layer].columns() | {"call": layer.call} | dict(numbers)
        rows = any(np.ndim(value) for value in numbers.values())
        self._parts.append(pd.DataFrame(columns) if rows else columns)

    def table(self) -> pd.DataFrame:
        """Return all rows, layers in execution order."""
        table = layer_table(self._parts, self.columns)
        return table.sort_values("order", kind="stable", ignore_index=True)


@dataclass
class SummandTables(LayerTables):
    """A watcher of the summands of some layers' weight gradients; a subclass defines `on_summands`.

    A layer whose summands are unknown is listed in `missed` with the reason.
    """

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        if layer not in self._places:
            return
        try:
            summands = summands_of(module, x, gradient)
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
        else:
            self.on_summands(layer, module, summands)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        """Receive the summands of a layer's weight gradient."""
        raise NotImplementedError


_COUNTS = ("examples", "positions", "parameters")
_RATIOS = ("input_independence", "parameter_input_independence", "predicted_for_random_signs")


@dataclass
class GradientSums(SummandTables):
    """The four gradient sums of every convolution and linear layer: a row per layer.

    Sums are averaged over the layer's parameters and divided by examples times positions, as in tables 1 and 4, so
    they are averages per summand. Examples are the layer's axis 0, which is longer than the batch in windowed
    attention. Summands are those of the weight as the layer applies it: αW with a multiplier α.

    Columns: ``sum_abs``, ``sum_b_abs_sum_xy``, ``sum_xy_abs_sum_b`` and ``abs_sum`` are Σ|d|, Σ_b|Σ_xy d|,
    Σ_xy|Σ_b d| and |Σd|. ``input_independence`` is abs_sum/sum_abs, between 0 and 1; ``parameter_input_independence``
    the mean of that ratio over parameters with a non-zero summand. ``predicted_for_random_signs`` is 1/√N with
    N = examples · positions, the value of either for independent normal summands of mean zero.

    Args:
        layers: paths of the weight layers to measure; None for all.
    """

    plot = Plot(
        "lines",
        x="order",
        y="input_independence",
        log="y",
        laws=[Law("random signs", "predicted_for_random_signs")],
        title="Do gradient summands agree?",
        x_label="weight layer",
        y_label="|Σd| / Σ|d|",
    )
    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, *_COUNTS, *SUM_COLUMNS, *_RATIOS)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        count, sums = summands.examples * summands.positions, summands.sums()
        total, dead = sums.total.abs(), sums.sum_abs == 0
        ratios = total / (sums.sum_abs + dead)
        each = torch.stack([sums.sum_abs, sums.sum_b_abs_sum_xy, sums.sum_xy_abs_sum_b, total]).flatten(1)
        means = [mean / count for mean in each.mean(1, dtype=torch.float64).tolist()]
        numbers = {
            "examples": summands.examples,
            "positions": summands.positions,
            "parameters": total.numel(),
            **dict(zip(SUM_COLUMNS, means, strict=True)),
            "input_independence": means[-1] / means[0] if means[0] else float("nan"),
            "parameter_input_independence": float(ratios.sum(dtype=torch.float64) / (~dead).sum()),
            "predicted_for_random_signs": count**-0.5,
        }
        self.add(layer, numbers)


_PARAMETER = (*LAYER_COLUMNS, "out_channel", "in_channel", "offset", "gradient", "abs_sum")


@dataclass
class ParameterGradients(SummandTables):
    """Gradient, sums of summands and in-channel mean of every parameter of some weight layers: a row per parameter.

    Summands are those of `GradientSums`, without averaging or division. Rows are in the order of the weight.

    Columns: ``out_channel``, ``in_channel`` (of the whole layer, across groups) and ``offset`` (in the kernel, in
    row-major order) identify the parameter; for a transposed convolution the first two are its axes 0 and 1.
    ``gradient`` is Σd. ``input_independence`` is abs_sum/sum_abs, NaN if all summands are 0. ``channel_mean`` is the
    mean over examples and positions of the in-channel before the activation, and before a norm that precedes it. A
    layer that does not read an activation directly (the first layer, a layer after pooling) has the mean of its own
    input; if the activation works in place or is not a module, that of the preceding layer or residual sum is used.

    Args:
        layers: paths of the weight layers to measure, best a few, since every parameter is a row.
    """

    columns: ClassVar[tuple[str, ...]] = (*_PARAMETER, *SUM_COLUMNS[:-1], "input_independence", "channel_mean")

    _sources: dict[Layer, str] = field(default_factory=dict, init=False, repr=False)
    _latest: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _means: dict[Layer, Tensor] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        sources = {layer: _source(setting.map, layer) for layer in self._places}
        self._sources = {layer: source for layer, source in sources.items() if source}
        self._model, self._latest, self._means = setting.model, {}, {}

    def wants(self, layer: Layer) -> bool:
        return layer in self._places or not {layer.path, f">{layer.path}"}.isdisjoint(self._sources.values())

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        for source, values in ((layer.path, x), (f">{layer.path}", y)):
            if source in self._sources.values():
                self._latest[source] = by_channel(module, values).mean(1)
        if layer in self._places:
            own = by_channel(module, x).mean(1)
            before = self._latest.get(self._sources.get(layer, ""), own)
            self._means[layer] = before if len(before) == len(own) else own

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        for layer, source in self._sources.items():
            if source == f"+{block.name}":
                self._latest[source] = by_channel(self._model.get_submodule(layer.path), total).mean(1)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        sums = summands.sums()
        outputs, inputs, *kernel = sums.total.shape
        out_channel, of_group, offset = np.indices((outputs, inputs, prod(kernel))).reshape(3, -1)
        in_channel = of_group + out_channel // (outputs // summands.groups) * inputs
        numbers = {name: value.double().flatten().cpu().numpy() for name, value in vars(sums).items()}
        gradient = numbers.pop("total")
        with np.errstate(invalid="ignore"):
            ratio = np.abs(gradient) / numbers["sum_abs"]
        # Axis 0 of a transposed convolution's weight has its in-channels.
        reads = out_channel if isinstance(module, _ConvTransposeNd) else in_channel
        means = self._means[layer].double().cpu().numpy()[reads]
        place = {"out_channel": out_channel, "in_channel": in_channel, "offset": offset}
        numbers |= {"gradient": gradient, "abs_sum": np.abs(gradient), "input_independence": ratio}
        self.add(layer, place | numbers | {"channel_mean": means})


def _source(residual_map: ResidualMap, layer: Layer) -> str:
    """Return the source of values before a layer's activation: a layer's input, its output (`>`) or a sum (`+`)."""
    activation = residual_map.by_path.get(layer.input or "")
    if activation is None or activation.kind != "activation":
        return ""
    before = residual_map.by_path.get(activation.input or "")
    if before is not None and before.kind == "norm" and ":" not in before.path and before.called:
        return before.path
    if ":" not in activation.path and activation.called and not activation.in_place:
        return activation.path
    if before is not None:
        return f">{before.path}"
    block = next((block for block in residual_map.walk() if activation in block.after_sum[:1]), None)
    return f"+{block.name}" if block is not None and ":" not in layer.path else ""


def gradient_alignment_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """Measure how gradients depend on channel means (figure 18) and on Σ|d| (figure 23), by layer.

    From rows of `ParameterGradients`, one row per layer and call: ``mean_correlation``, the rank correlation
    (Spearman) of |gradient| with the in-channel's mean over parameters; ``dead_gradient`` and ``live_gradient``, the
    mean |gradient| of the tenth of parameters with the lowest channel means and the tenth with the highest;
    ``sum_correlation``, the linear correlation (Pearson) of |Σd| with Σ|d|; ``share_aligned``, the share of
    parameters with |Σd| ≥ Σ|d|/2. Correlations are NaN if either side is constant.
    """
    return by_layer(parameters, _alignment)


def _alignment(parameters: pd.DataFrame) -> dict[str, float]:
    sizes, means = parameters["abs_sum"], parameters["channel_mean"]
    by_mean = parameters.sort_values("channel_mean")["abs_sum"].to_numpy(float)
    tenth = max(1, len(by_mean) // 10)
    both = sizes.nunique() > 1 and means.nunique() > 1
    varies = parameters["sum_abs"].nunique() > 1
    return {
        "mean_correlation": float(spearmanr(sizes, means)[0]) if both else np.nan,
        "dead_gradient": float(by_mean[:tenth].mean()),
        "live_gradient": float(by_mean[-tenth:].mean()),
        "sum_correlation": float(sizes.corr(parameters["sum_abs"])) if varies else np.nan,
        "share_aligned": float((parameters["input_independence"] >= 0.5).mean()),
    }


Choice = Literal["largest", "cancelling", "small"]

# The quantile of a parameter with a small gradient.
_SMALL = 0.05


@dataclass
class SummandDistribution(SummandTables):
    """All summands d of some parameters of one layer: a row per parameter, example and position.

    Columns: ``parameter`` is the index within the weight as text, ``chosen`` the choice, or `given` for an index,
    ``position`` is counted in row-major order, ``summand`` is d in the loss's unit per unit of the weight.

    Args:
        layer: path of a weight layer.
        parameters: each the index within the weight, or a choice: `largest` is the parameter with the largest |Σd|;
            `cancelling`, with the smallest |Σd|/Σ|d| among the half with the largest Σ|d|, which excludes parameters
            that read a dead channel; `small`, at the 5 % quantile of |Σd| among parameters with a non-zero summand.
    """

    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, "parameter", "chosen", "example", "position", "summand")

    layers: Collection[str] | None = field(default=None, init=False, repr=False)
    layer: str
    parameters: Sequence[tuple[int, ...] | Choice] = ("largest", "cancelling")

    def on_start(self, setting: Setting) -> None:
        self.layers = [self.layer]
        super().on_start(setting)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        choices = {parameter for parameter in self.parameters if isinstance(parameter, str)}
        sums = summands.sums() if choices else None
        chosen = {} if sums is None else {choice: _chosen(sums, choice) for choice in choices}
        for parameter in self.parameters:
            index = chosen[parameter] if isinstance(parameter, str) else parameter
            values = summands.of_parameter(index).flatten(1)
            example, position = np.indices(values.shape).reshape(2, -1)
            columns: dict[str, Any] = {"parameter": ",".join(map(str, index))}
            columns["chosen"] = parameter if isinstance(parameter, str) else "given"
            columns |= {"example": example, "position": position, "summand": values.flatten().cpu().numpy()}
            self.add(layer, columns)


def _chosen(sums: SummandTotals, choice: str) -> tuple[int, ...]:
    """Return the index of the chosen parameter."""
    sizes = sums.total.abs()
    if choice == "largest":
        at = sizes.argmax()
    elif choice == "cancelling":
        large = (sums.sum_abs >= sums.sum_abs.median()) & (sums.sum_abs > 0)
        at = torch.where(large, sizes / sums.sum_abs, torch.inf).argmin()
    elif choice == "small":
        alive = torch.where(sums.sum_abs > 0, sizes, torch.inf)
        at = alive.flatten().argsort()[int(_SMALL * int((sums.sum_abs > 0).sum()))]
    else:
        raise ValueError(f"Expected the index of a parameter, 'largest', 'cancelling' or 'small', got {choice!r}.")
    return tuple(map(int, np.unravel_index(int(at), sizes.shape)))


def summand_statistics(summands: pd.DataFrame) -> pd.DataFrame:
    """Measure whether the summands of each parameter are centred around 0 or skewed to one side.

    From rows of `SummandDistribution`, one row per parameter: ``count``, ``mean``, ``standard_deviation``,
    ``one_sign_share`` (the larger share of a sign among non-zero summands: 1/2 if they are centred, 1 if all agree),
    ``input_independence`` (|Σd|/Σ|d|) and ``mean_in_deviations`` (|mean| over the standard deviation).
    """
    keys, rows = ["layer", "call", "parameter", "chosen"], []
    for key, group in summands.groupby(keys, sort=False):
        values = group["summand"].to_numpy(float)
        positive, negative = int((values > 0).sum()), int((values < 0).sum())
        absolute, mean, deviation = float(np.abs(values).sum()), float(values.mean()), float(values.std())
        row = dict(zip(keys, key, strict=True)) | {"count": len(values), "mean": mean}
        row["standard_deviation"] = deviation
        row["one_sign_share"] = max(positive, negative) / (positive + negative) if absolute else np.nan
        row["input_independence"] = abs(float(values.sum())) / absolute if absolute else np.nan
        row["mean_in_deviations"] = abs(mean) / deviation if deviation else np.nan
        rows.append(row)
    return pd.DataFrame(rows)
