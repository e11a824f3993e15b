"""Every parameter of a layer: its gradient, the sums of its summands, and the channel it reads.

Tables 1 and 4 of "Understanding batch normalization" (Bjorck et al. 2018) are averages of these; its figures 18
(gradient against the mean of the channel before ReLU) and 23 (|Σd| against Σ|d|) scatter them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from normless.probes import Setting
from normless.residual import Layer, ResidualBlock
from normless_papers.probes.layer_tables import LAYER_COLUMNS, SUM_COLUMNS, SummandTables, by_layer
from normless_papers.probes.preactivations import Preactivations
from normless_papers.probes.summands import Summands, Sums

_PLACE = (*LAYER_COLUMNS, "out_channel", "in_channel", "offset")
COLUMNS = (*_PLACE, "gradient", "abs_sum", *SUM_COLUMNS[:-1], "input_independence", "channel_mean")


@dataclass
class ParameterGradients(SummandTables):
    """Gradient, sums of summands and in-channel mean of every parameter of some weight layers: a row per parameter.

    Summands are those of `GradientSums`, neither averaged nor divided. Rows are in the order of the weight.

    Columns: ``out_channel``, ``in_channel`` (of the whole layer, across groups) and ``offset`` (in the kernel, in
    row-major order) identify the parameter; for a transposed convolution the first two are its axes 0 and 1.
    ``gradient`` is Σd. ``input_independence`` is abs_sum/sum_abs, NaN where all summands are 0. ``channel_mean`` is
    the mean over examples and positions of the in-channel before the activation, and before a norm in front of that.

    Args:
        layers: paths of the weight layers to measure: a few, since every parameter is a row.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    _means: dict[Layer, Tensor] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Choose the layers, and find what they read."""
        super().on_start(setting)
        self._preactivations = Preactivations(setting.model, setting.map, self._places)
        self._means = {}

    def wants(self, layer: Layer) -> bool:
        """The chosen layers, and the layers whose outputs they read."""
        return self._preactivations.wants(layer)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """The means of channels."""
        self._preactivations.on_layer(layer, module, x, y)
        if layer in self._places:
            self._means[layer] = self._preactivations.means(layer, module, x)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The means of channels before an activation after a sum."""
        self._preactivations.on_sum(block, total)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        """The sums of one layer's parameters."""
        columns = _columns(summands.sums(), summands.groups)
        # A transposed convolution reads by its weight's axis 0.
        reads = "out_channel" if isinstance(module, _ConvTransposeNd) else "in_channel"
        means = self._means[layer].double().cpu().numpy()
        self.add(layer, columns | {"channel_mean": means[columns[reads]]})


def _columns(sums: Sums, groups: int) -> dict[str, Any]:
    """The columns of one layer, without the means of channels."""
    outputs, inputs = sums.total.shape[:2]
    out_channel, of_group, offset = (axis.ravel() for axis in np.indices((outputs, inputs, sums.total[0, 0].numel())))
    numbers = {name: value.double().flatten().cpu().numpy() for name, value in vars(sums).items()}
    gradient = numbers.pop("total")
    with np.errstate(invalid="ignore"):
        ratio = np.abs(gradient) / numbers["sum_abs"]
    return {
        "out_channel": out_channel,
        "in_channel": of_group + out_channel // (outputs // groups) * inputs,
        "offset": offset,
        "gradient": gradient,
        "abs_sum": np.abs(gradient),
        **numbers,
        "input_independence": ratio,
    }


def gradient_alignment_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """How far gradients follow channel means (figure 18) and their own Σ|d| (figure 23), layer by layer.

    Of rows of `ParameterGradients` one row per layer and call: ``mean_correlation``, the rank correlation (Spearman)
    of |gradient| with the in-channel's mean over parameters; ``dead_gradient`` and ``live_gradient``, the mean
    |gradient| of the tenth of parameters with the lowest channel means and the tenth with the highest;
    ``sum_correlation``, the linear correlation (Pearson) of |Σd| with Σ|d|; ``share_aligned``, the share of
    parameters with |Σd| ≥ Σ|d|/2. Correlations are NaN where one side is constant.
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
