"""The gradients of the output channels of weight layers, and their spread over channels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from normless.probes import LayerPosition, Setting, Watcher, by_channel, layer_positions, layer_table
from normless.residual import Layer
from normless_papers.probes.layer_tables import LAYER_COLUMNS, by_layer

COLUMNS = (*LAYER_COLUMNS, "measured_at", "channel", "gradient", "mean_abs")


@dataclass
class ChannelGradients(Watcher):
    """Gradient of a bias on every output channel of every weight layer: Σ_bxy ∂L/∂y(b, c, x, y).

    Without normalization the channels of the lower layers are scaled very differently, since a product of many
    random matrices is badly conditioned (Bjorck et al., appendix I.2, figure 19). Where a norm alone reads the
    layer's output, y is the norm's output and the bias its β: a bias before a norm that subtracts the mean has no
    gradient.
    """

    _positions: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    _weights: dict[Layer, Layer] = field(default_factory=dict, init=False, repr=False)
    _tables: dict[Layer, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find the layer or norm at which the channels of each weight layer are biased."""
        self._positions, self._tables, self._weights = layer_positions(setting.map), {}, {}
        for layer in self._positions:
            readers = setting.map.readers.get(layer.path, [])
            norms = [one for one in readers if one.kind == "norm" and one.call == layer.call]
            alone = len(readers) == 1 and norms and ":" not in norms[0].path and norms[0].called
            self._weights[norms[0] if alone else layer] = layer

    def wants(self, layer: Layer) -> bool:
        """Weight layers, or the norms after them."""
        return layer in self._weights

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Sum over examples and positions."""
        channels, weight = by_channel(module, gradient), self._weights[layer]
        columns: dict[str, Any] = self._positions[weight].columns()
        columns |= {"call": weight.call, "measured_at": layer.path, "channel": np.arange(len(channels))}
        columns["gradient"] = channels.sum(1).double().cpu().numpy()
        columns["mean_abs"] = channels.abs().mean(1).double().cpu().numpy()
        self._tables[weight] = pd.DataFrame(columns)

    def table(self) -> pd.DataFrame:
        """A row per layer and channel in execution order; the columns are `COLUMNS`.

        ``measured_at`` is the path of the layer or norm with output y; ``gradient`` Σ_bxy ∂L/∂y, in nats per unit of
        y; ``mean_abs`` the mean of |∂L/∂y| over examples and positions.
        """
        return layer_table([self._tables[layer] for layer in self._positions if layer in self._tables], COLUMNS)


def channel_gradient_spread(channels: pd.DataFrame) -> pd.DataFrame:
    """The spread of |gradient| over the channels of each layer.

    Of rows of `ChannelGradients` one row per layer in execution order: ``channels``; ``mean`` and
    ``standard_deviation`` of |gradient| over channels; ``variation``, their ratio; ``decades``, the standard
    deviation of log₁₀|gradient| over channels with a gradient; and ``predicted_variation`` = √(π/2 - 1) ≈ 0.756,
    that of normal gradients of one variance.
    """
    return by_layer(channels, _spread)


def _spread(channels: pd.DataFrame) -> dict[str, float]:
    sizes = channels["gradient"].abs().to_numpy(float)
    mean, deviation = float(sizes.mean()), float(sizes.std())
    logarithms = np.log10(sizes[sizes > 0])
    return {
        "channels": len(sizes),
        "mean": mean,
        "standard_deviation": deviation,
        "variation": deviation / mean if mean else np.nan,
        "decades": float(logarithms.std()) if len(logarithms) else np.nan,
        "predicted_variation": float(np.sqrt(np.pi / 2 - 1)),
    }
