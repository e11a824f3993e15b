"""The gradients of the output channels of weight layers, and their spread over channels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
from torch import Tensor, nn

from normless.probes import Setting, by_channel
from normless.residual import Layer
from normless_papers.probes.layer_tables import LAYER_COLUMNS, LayerTables, by_layer


@dataclass
class ChannelGradients(LayerTables):
    """Gradient of a bias on every output channel of every weight layer: Σ_bxy ∂L/∂y(b, c, x, y), a row per channel.

    Without normalization the channels of the lower layers are scaled very differently, since a product of many
    random matrices is badly conditioned (Bjorck et al., appendix I.2, figure 19). If only a norm reads the layer's
    output, y is the norm's output and the bias its β, since a bias before a norm that subtracts the mean has no
    gradient.

    Columns: ``measured_at`` is the path of the layer or norm with output y; ``gradient`` Σ_bxy ∂L/∂y, in nats per
    unit of y; ``mean_abs`` the mean of |∂L/∂y| over examples and positions.
    """

    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, "measured_at", "channel", "gradient", "mean_abs")

    _weights: dict[Layer, Layer] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        self._weights = {}
        for layer in self._places:
            readers = setting.map.readers.get(layer.path, [])
            norms = [reader for reader in readers if reader.kind == "norm" and reader.call == layer.call]
            alone = len(readers) == 1 and norms and ":" not in norms[0].path and norms[0].called
            self._weights[norms[0] if alone else layer] = layer

    def wants(self, layer: Layer) -> bool:
        return layer in self._weights

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        channels = by_channel(module, gradient)
        numbers = {"gradient": channels.sum(1), "mean_abs": channels.abs().mean(1)}
        columns = {"measured_at": layer.path, "channel": np.arange(len(channels))}
        columns |= {name: number.double().cpu().numpy() for name, number in numbers.items()}
        self.add(self._weights[layer], columns)


def channel_gradient_spread(channels: pd.DataFrame) -> pd.DataFrame:
    """Measure the spread of |gradient| over the channels of each layer.

    From rows of `ChannelGradients`, one row per layer in execution order: ``channels``; ``mean`` and
    ``standard_deviation`` of |gradient| over channels; ``variation``, their ratio; ``decades``, the standard
    deviation of log₁₀|gradient| over channels with a gradient; and ``predicted_variation`` = √(π/2 - 1) ≈ 0.756,
    the variation of normal gradients of equal variance.
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
