"""Whether the summands of a weight's gradient agree: four sums per layer, by where absolute values are taken.

The gradient of a weight is a sum of d over examples b and positions xy (equation 4 of "Understanding batch
normalization", Bjorck et al. 2018). If all have one sign, |Σ_bxy d| = Σ_bxy |d|: the gradient says the same whatever
the example and the position, and is as large as it can be. For N independent summands of random sign the ratio is
about 1/√N. At initialization it is near 1 in deep unnormalized networks and near 10⁻² with batch normalization
(tables 1 and 4).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.plots import Law, Plot
from normless.probes import Loss, Place, Setting, Watcher, in_order, observe, places, require_known
from normless.residual import Layer, ResidualMap, Unresolved
from normless_papers.probes.layer_summands import UnknownSummandsError, summands_of
from normless_papers.probes.summands import Sums

COLUMNS = (
    "order",
    "layer",
    "block",
    "call",
    "examples",
    "positions",
    "parameters",
    "sum_abs",
    "sum_b_abs_sum_xy",
    "sum_xy_abs_sum_b",
    "abs_sum",
    "input_independence",
    "parameter_input_independence",
    "predicted_for_random_signs",
)


@dataclass
class GradientSums(Watcher):
    """The four gradient sums of every convolution and linear layer, in one pass forward and back.

    Sums are averaged over the layer's parameters and divided by examples times positions, as in tables 1 and 4, so
    they are the gradient of one summand. Examples are the axis 0 that the layer sees, which windowed
    attention makes longer than the batch. Summands are those of the weight as the layer applies it: with a
    multiplier α, of αW. Of a layer that none can be told for, `missed` says why.

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
    layers: Collection[str] | None = None
    _places: dict[Layer, Place] = field(default_factory=dict, init=False, repr=False)
    _rows: dict[Layer, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Number the layers that are to be measured."""
        self._places, self._rows = places(setting.map), {}
        require_known(self.layers, dict.fromkeys(layer.path for layer in self._places), "weight layer")

    def wants(self, layer: Layer) -> bool:
        """The weight layers."""
        return layer in self._places and (self.layers is None or layer.path in self.layers)

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """The sums of one layer."""
        try:
            summands = summands_of(module, x, gradient)
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
            return
        count = summands.examples * summands.positions
        where = self._places[layer].columns() | {"call": layer.call}
        size = {"examples": summands.examples, "positions": summands.positions}
        self._rows[layer] = where | size | _averages(summands.sums(), count)

    def table(self) -> pd.DataFrame:
        """A row per weight layer that was measured, in execution order; the columns are `COLUMNS`.

        ``sum_abs``, ``sum_b_abs_sum_xy``, ``sum_xy_abs_sum_b`` and ``abs_sum`` are Σ|d|, Σ_b|Σ_xy d|, Σ_xy|Σ_b d| and
        |Σd|. ``input_independence`` is abs_sum/sum_abs, between 0 and 1; ``parameter_input_independence`` the mean of
        each parameter's own ratio, those without any summand but zero left out. ``predicted_for_random_signs`` is
        1/√N with N = examples · positions: what either would be for independent normal summands of mean zero.
        """
        table = pd.DataFrame(list(self._rows.values()), columns=list(COLUMNS))
        return in_order(table).sort_values("order", ignore_index=True)


def _averages(sums: Sums, count: int) -> dict[str, float]:
    """What a row says of the sums of one layer's parameters."""
    absolute, total = sums.sum_abs.double(), sums.total.double().abs()
    known = absolute > 0
    sum_abs, abs_sum = float(absolute.mean()) / count, float(total.mean()) / count
    return {
        "parameters": absolute.numel(),
        "sum_abs": sum_abs,
        "sum_b_abs_sum_xy": float(sums.sum_b_abs_sum_xy.mean(dtype=torch.float64)) / count,
        "sum_xy_abs_sum_b": float(sums.sum_xy_abs_sum_b.mean(dtype=torch.float64)) / count,
        "abs_sum": abs_sum,
        "input_independence": abs_sum / sum_abs if sum_abs else float("nan"),
        "parameter_input_independence": float((total[known] / absolute[known]).mean()),
        "predicted_for_random_signs": count**-0.5,
    }


def gradient_sum_table(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    layers: Collection[str] | None = None,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """What `GradientSums` measures on one batch; the network is left as it was.

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        layers: paths of the weight layers to measure; None for all.
        loss: (logits, targets) to a scalar in nats; the sums are of its gradient.
        residual_map: the network's map, found where it is not given.
        training: whether norms use the batch's statistics.

    Returns:
        A row per layer, as `GradientSums.table`.

    Raises:
        ValueError: a path is no weight layer, or the network has no trainable parameter or no logits.
    """
    watcher = GradientSums(layers)
    observe(model, [watcher], inputs, targets, loss=loss, residual_map=residual_map, training=training)
    return watcher.table()
