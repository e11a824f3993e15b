"""Agreement of the summands of a weight's gradient: four sums per layer, which differ in the place of the modulus.

The gradient of a weight is a sum of d over examples b and positions xy (equation 4 of "Understanding batch
normalization", Bjorck et al. 2018). If all have the same sign, |Σ_bxy d| = Σ_bxy |d|. At initialization the ratio is
near 1 in deep unnormalized networks and near 10⁻² with batch normalization (tables 1 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from normless.residual import Layer
from normless_lab.plots import Law, Plot
from normless_papers.probes.layer_tables import LAYER_COLUMNS, SUM_COLUMNS, SummandTables
from normless_papers.probes.summands import Summands

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
