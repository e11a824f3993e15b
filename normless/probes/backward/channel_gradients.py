"""The gradient of every channel that a weight layer puts out: that of a bias behind it.

The more layers are ahead in an unnormalized network, the more differently the channels of a layer are scaled, since
a product of many random matrices is badly conditioned ("Understanding batch normalization", appendix I.2, figure 19).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from normless.probes.hooks.channels import by_channel
from normless.probes.hooks.layer_order import Place, in_order, places
from normless.probes.hooks.watcher import Setting, Watcher
from normless.residual import Layer

COLUMNS = ("order", "layer", "block", "call", "measured_at", "channel", "gradient", "mean_abs")


@dataclass
class ChannelGradients(Watcher):
    """Σ_bxy ∂L/∂y(b, c, x, y) of every channel c that a weight layer puts out: a bias would have that gradient.

    Where the output goes straight to a norm, y is that of the norm, whose β is the bias: before a norm that takes the
    mean away, a bias has no gradient.
    """

    _places: dict[Layer, Place] = field(default_factory=dict, init=False, repr=False)
    _measured: dict[Layer, tuple[Layer, Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find where the channels of each layer are biased."""
        self._places, self._measured, self._weights = places(setting.map), {}, {}
        readers = setting.map.readers
        for layer in self._places:
            norms = [one for one in readers.get(layer.path, []) if one.kind == "norm" and one.call == layer.call]
            alone = len(readers.get(layer.path, [])) == 1 and norms and ":" not in norms[0].path and norms[0].called
            self._weights[norms[0] if alone else layer] = layer

    def wants(self, layer: Layer) -> bool:
        """The weight layers, or the norms behind them."""
        return layer in self._weights

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Sum over examples and positions."""
        channels = by_channel(module, gradient)
        sums, absolute = channels.sum(1).double().cpu(), channels.abs().mean(1).double().cpu()
        self._measured[self._weights[layer]] = (layer, sums, absolute)

    def table(self) -> pd.DataFrame:
        """A row per layer and channel in execution order; the columns are `COLUMNS`.

        ``measured_at`` is the path of the layer or norm whose output y it is; ``gradient`` Σ_bxy ∂L/∂y, in nats per
        unit of y; ``mean_abs`` the mean of |∂L/∂y| over examples and positions.
        """
        tables = []
        for layer, place in self._places.items():
            if layer in self._measured:
                at, sums, absolute = self._measured[layer]
                columns: dict[str, Any] = place.columns() | {"call": layer.call, "measured_at": at.path}
                columns |= {"channel": np.arange(len(sums)), "gradient": sums.numpy(), "mean_abs": absolute.numpy()}
                tables.append(pd.DataFrame(columns))
        return in_order(pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS)))


def channel_gradient_spread(channels: pd.DataFrame) -> pd.DataFrame:
    """How differently the channels of each layer are scaled.

    Args:
        channels: rows of `ChannelGradients`.

    Returns:
        One row per layer in execution order: ``order``, ``layer``, ``call``, ``channels``, ``mean`` and
        ``standard_deviation`` of |gradient| over channels, in its unit; ``variation``, the one over the other, and
        ``decades``, the standard deviation of log₁₀|gradient| over channels that have any: free of the scale. Signed
        gradients that are normal with one variance have variation √(π/2 - 1) ≈ 0.756, in ``predicted_variation``.
    """
    rows = []
    for (order, layer, call), group in channels.groupby(["order", "layer", "call"], sort=True):
        sizes = group["gradient"].abs().to_numpy(float)
        mean, deviation = float(sizes.mean()), float(sizes.std())
        logarithms = np.log10(sizes[sizes > 0])
        row = {"order": order, "layer": layer, "call": call, "channels": len(sizes)}
        row |= {"mean": mean, "standard_deviation": deviation, "variation": deviation / mean if mean else np.nan}
        row["decades"] = float(logarithms.std()) if len(logarithms) else np.nan
        row["predicted_variation"] = float(np.sqrt(np.pi / 2 - 1))
        rows.append(row)
    return pd.DataFrame(rows)
