"""Gradients of a layer's parameters, the sums of their summands, and the channels that they read.

Tables 1 and 4 of "Understanding batch normalization" (Bjorck et al. 2018) are averages of these; its figures 18
(gradient against the mean of the channel before ReLU) and 23 (|Σd| against Σ|d|) scatter them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from normless.probes import Setting, by_channel
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.layer_tables import LAYER_COLUMNS, SUM_COLUMNS, SummandTables, by_layer
from normless_papers.probes.summands import Summands

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
