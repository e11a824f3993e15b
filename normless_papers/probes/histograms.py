"""Histograms of activations, of their gradients and of parameters' gradients, at chosen layers and channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks
from torch import Tensor, nn

from normless.probes import (
    LayerPosition,
    Setting,
    Watcher,
    by_channel,
    layer_positions,
    layer_table,
    parameter_positions,
)
from normless.residual import Layer
from normless_papers.probes.network_function import require_known
from normless_papers.probes.summand_tables import LayerTables

_PLACE = ("parameter", "order", "layer", "block", "call", "channel")


@dataclass
class _Histograms(Watcher):
    """A watcher that collects histograms; each is `bins` rows of the table."""

    columns: ClassVar[tuple[str, ...]] = (*_PLACE, "low", "high", "count", "density", "not_finite")

    bins: int = 60
    _rows: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        self._rows = []

    def count(self, where: dict[str, Any], values: Tensor) -> None:
        """Count the elements of a tensor in bins of equal width from the smallest to the largest."""
        wide = values.double().flatten().cpu().numpy()
        finite = wide[np.isfinite(wide)]
        counts, edges = np.histogram(finite, bins=self.bins)
        heights = counts / (max(len(finite), 1) * np.diff(edges))
        shared = where | {"not_finite": len(wide) - len(finite)}
        for low, high, count, height in zip(edges[:-1], edges[1:], counts, heights, strict=True):
            self._rows.append(shared | {"low": low, "high": high, "count": int(count), "density": height})

    def table(self) -> pd.DataFrame:
        """Return a row per bin of every histogram, in execution order."""
        table = layer_table(self._rows, self.columns).astype({"channel": "Int64"})
        return table.sort_values(["order", "call", "channel"], kind="stable", ignore_index=True)


@dataclass
class _LayerHistograms(LayerTables, _Histograms):
    channels: Sequence[int] | None = None

    columns = _Histograms.columns
    table = _Histograms.table

    def count_channels(self, layer: Layer, module: nn.Module, y: Tensor) -> None:
        """Add a histogram of each chosen channel, or of all channels together."""
        where = self._places[layer].columns() | {"call": layer.call}
        if self.channels is None:
            self.count(where, y)
            return
        matrix = by_channel(module, y)
        for channel in self.channels:
            if not 0 <= channel < len(matrix):
                raise ValueError(f"Layer {layer.path} has the channels 0 to {len(matrix) - 1}, not {channel}.")
            self.count(where | {"channel": channel}, matrix[channel])


@dataclass
class ActivationHistograms(_LayerHistograms):
    """Histograms of the outputs of weight layers, before norm and activation (Bjorck et al., figures 13 and 14).

    Args:
        bins: number of bins of equal width, from the smallest to the largest value.
        layers: their paths; every weight layer if None.
        channels: indices of the channels, a histogram for each; one of all channels together if None.

    Raises:
        ValueError: a layer or channel that the network does not have.
    """

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.count_channels(layer, module, y)


@dataclass
class OutputGradientHistograms(_LayerHistograms):
    """Histograms of the gradients of the loss with respect to the outputs of weight layers.

    Arguments and errors are those of `ActivationHistograms`.
    """

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        self.count_channels(layer, module, gradient)


@dataclass
class ParameterGradientHistograms(_Histograms):
    """Histograms of the gradients of the loss with respect to parameters (Bjorck et al., figure 2).

    Args:
        bins: as for `ActivationHistograms`.
        parameters: qualified names; the weight of every weight layer if None.

    Raises:
        ValueError: a parameter that the network does not have.
    """

    parameters: Sequence[str] | None = None
    _places: dict[str, LayerPosition] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        places = parameter_positions(setting.model, setting.map)
        require_known(self.parameters, places, "parameter")
        weights = [f"{layer.path}.weight" for layer in layer_positions(setting.map)]
        chosen = weights if self.parameters is None else self.parameters
        self._places = {name: place for name, place in places.items() if name in chosen}

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        if name in self._places:
            dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
            self.count({"parameter": name, **self._places[name].columns()}, dense)


def peak_counts(table: pd.DataFrame, *, prominence: float = 0.1, smoothing: float = 1.5) -> pd.DataFrame:
    """Count the modes of each histogram of a table: 1 if it is unimodal.

    A mode is a maximum of the counts, smoothed by a Gaussian of `smoothing` bins, with a prominence of at least
    `prominence` times the highest count. A row per histogram: `parameter`, `order`, `layer`, `call`, `channel`,
    `peaks`. ValueError unless `prominence` is in (0, 1].
    """
    if not 0 < prominence <= 1:
        raise ValueError(f"The prominence of a peak is a share of the highest, in (0, 1], not {prominence}.")
    keys = [name for name in _PLACE if name != "block"]
    rows = [
        (*key, _peaks(counts.to_numpy(float), prominence, smoothing))
        for key, counts in table.groupby(keys, sort=False, dropna=False)["count"]
    ]
    return pd.DataFrame(rows, columns=[*keys, "peaks"])


def _peaks(counts: npt.NDArray[np.float64], prominence: float, smoothing: float) -> int:
    padding = int(4 * smoothing) + 1
    smooth = gaussian_filter1d(np.pad(counts, padding), smoothing, mode="constant")
    highest = smooth.max(initial=0.0)
    return len(find_peaks(smooth, prominence=prominence * highest)[0]) if highest > 0 else 0
