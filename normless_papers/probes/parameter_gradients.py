"""Every parameter of a layer by itself: its gradient, the sums of its summands, and the channel it reads.

Beside the averages of tables 1 and 4 of "Understanding batch normalization" (Bjorck et al. 2018) this is what its
figures 18 (gradient against the mean of the channel before ReLU) and 23 (|Σd| against Σ|d|) scatter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from normless.probes import LayerPosition, Setting, Watcher, layer_positions, layer_table, require_known
from normless.residual import Layer, ResidualBlock, Unresolved
from normless_papers.probes.layer_summands import UnknownSummandsError, summands_of
from normless_papers.probes.preactivations import Preactivations
from normless_papers.probes.summands import Sums

COLUMNS = (
    "order",
    "layer",
    "block",
    "call",
    "out_channel",
    "in_channel",
    "offset",
    "gradient",
    "abs_sum",
    "sum_abs",
    "sum_b_abs_sum_xy",
    "sum_xy_abs_sum_b",
    "input_independence",
    "channel_mean",
)


@dataclass
class ParameterGradients(Watcher):
    """Gradient, sums of summands and in-channel mean of every parameter of some weight layers, in one pass.

    Summands are those of `GradientSums`, here neither averaged nor divided: ``gradient`` is Σd as the loss has it.
    Of a layer that none can be told for, `missed` says why.

    Args:
        layers: paths of the weight layers to measure. A row for each parameter: a few layers at a time are meant.
    """

    layers: Collection[str]
    _places: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    _means: dict[Layer, Tensor] = field(default_factory=dict, init=False, repr=False)
    _tables: list[pd.DataFrame] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find the layers and what they read."""
        found = layer_positions(setting.map)
        require_known(self.layers, dict.fromkeys(layer.path for layer in found), "weight layer")
        self._places = {layer: place for layer, place in found.items() if layer.path in self.layers}
        self._preactivations = Preactivations(setting.model, setting.map, self._places)
        self._means, self._tables = {}, []

    def wants(self, layer: Layer) -> bool:
        """The layers asked for and what their channels' means are taken of."""
        return self._preactivations.wants(layer)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """The means of channels."""
        self._preactivations.tell_layer(layer, module, x, y)
        if layer in self._places:
            self._means[layer] = self._preactivations.means(layer, module, x)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The means of channels before an activation behind a sum."""
        self._preactivations.tell_sum(block, total)

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """The sums of one layer's parameters."""
        if layer not in self._places:
            return
        try:
            summands = summands_of(module, x, gradient)
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
            return
        where = self._places[layer].columns() | {"call": layer.call}
        # A transposed convolution reads by its weight's axis 0.
        reads = "out_channel" if isinstance(module, _ConvTransposeNd) else "in_channel"
        means = self._means[layer].double().cpu().numpy()
        rows = _rows(where, summands.sums(), summands.groups)
        self._tables.append(rows.assign(channel_mean=means[rows[reads]]))

    def table(self) -> pd.DataFrame:
        """A row per parameter, in the layers' execution order and the weight's own; the columns are `COLUMNS`.

        ``out_channel``, ``in_channel`` (of the whole layer, groups counted through) and ``offset`` (in the kernel, in
        row-major order) tell which; of a transposed convolution the first two are its axes 0 and 1.
        ``input_independence`` is abs_sum/sum_abs, NaN where all summands are 0. ``channel_mean`` is the mean
        over examples and positions of the in-channel before the activation, and before a norm in front of that.
        """
        return layer_table(self._tables, COLUMNS).sort_values("order", kind="stable", ignore_index=True)


def _rows(where: Mapping[str, object], sums: Sums, groups: int) -> pd.DataFrame:
    """The rows of one layer, without the means of channels."""
    shape = sums.total.shape
    flat = sums.total.flatten(2) if sums.total.dim() > 2 else sums.total.unsqueeze(2)
    out_channel, of_group, offset = (axis.ravel() for axis in np.indices(flat.shape))
    in_channel = of_group + out_channel // (shape[0] // groups) * shape[1]
    gradient, absolute = (one.double().flatten().cpu().numpy() for one in (sums.total, sums.sum_abs))
    with np.errstate(invalid="ignore"):
        ratio = np.abs(gradient) / absolute
    return pd.DataFrame(
        dict(where)
        | {
            "out_channel": out_channel,
            "in_channel": in_channel,
            "offset": offset,
            "gradient": gradient,
            "abs_sum": np.abs(gradient),
            "sum_abs": absolute,
            "sum_b_abs_sum_xy": sums.sum_b_abs_sum_xy.double().flatten().cpu().numpy(),
            "sum_xy_abs_sum_b": sums.sum_xy_abs_sum_b.double().flatten().cpu().numpy(),
            "input_independence": ratio,
        }
    )


def gradient_alignment_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """How far gradients follow channel means (figure 18) and their own Σ|d| (figure 23), layer by layer.

    Args:
        parameters: rows of `ParameterGradients`.

    Returns:
        One row per layer and call: ``order``, ``layer``, ``call``; ``mean_correlation``, the rank correlation
        (Spearman) of |gradient| with the in-channel's mean over parameters; ``dead_gradient`` and ``live_gradient``,
        the mean |gradient| of the tenth of parameters with the lowest channel means and the tenth with the highest;
        ``sum_correlation``, the linear correlation (Pearson) of |Σd| with Σ|d|; ``share_aligned``, the share of
        parameters with |Σd| ≥ Σ|d|/2. Correlations are NaN where one side does not vary.
    """
    rows = []
    for (order, layer, call), group in parameters.groupby(["order", "layer", "call"], sort=True):
        by_mean = group.sort_values("channel_mean")["abs_sum"].to_numpy(float)
        tenth = max(1, len(by_mean) // 10)
        varies = group[["abs_sum", "channel_mean", "sum_abs"]].nunique() > 1
        both = bool(varies["abs_sum"] and varies["channel_mean"])
        rows.append(
            {
                "order": order,
                "layer": layer,
                "call": call,
                "mean_correlation": float(spearmanr(group["abs_sum"], group["channel_mean"])[0]) if both else np.nan,
                "dead_gradient": float(by_mean[:tenth].mean()),
                "live_gradient": float(by_mean[-tenth:].mean()),
                "sum_correlation": float(group["abs_sum"].corr(group["sum_abs"])) if varies["sum_abs"] else np.nan,
                "share_aligned": float((group["input_independence"] >= 0.5).mean()),
            }
        )
    return pd.DataFrame(rows)
