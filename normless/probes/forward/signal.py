"""How the signal grows along the skip path, measured beside what theory predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes.forward.predicted import PredictedRows, measured_by_block
from normless.probes.hooks.channels import channel_axis
from normless.probes.hooks.watcher import Setting
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.signal import BlockMoments

COLUMNS = (
    "block",
    "name",
    "skip_variance",
    "branch_variance",
    "sum_variance",
    "skip_second_moment",
    "branch_second_moment",
    "sum_second_moment",
    "norm_mean_square",
    "norm_variance",
    "predicted_skip_variance",
    "predicted_branch_variance",
    "predicted_sum_variance",
    "predicted_skip_second_moment",
    "predicted_branch_second_moment",
    "predicted_sum_second_moment",
    "predicted_norm_mean_square",
    "predicted_norm_variance",
)


@dataclass
class Signal(PredictedRows):
    """Variance and second moment on the skip path, at the branch end and behind the sum of every block.

    Moments are over examples, channels and positions together, for the one set of weights the network has (De &
    Smith, figures 2 and 5); the branch as it enters the sum, its multiplier applied, those of several branches
    added. `norm_mean_square` and `norm_variance` are what the block's first norm would hold after one update with
    momentum 0: the squared mean and the biased variance of each channel, averaged over channels; NaN in blocks
    without a norm.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_start(self, setting: Setting) -> None:
        """Begin a table, and note the first norm of every block."""
        super().on_start(setting)
        self._norms = {block.norms[0]: block.name for block in reversed(setting.map.blocks) if block.norms}

    def wants(self, layer: Layer) -> bool:
        """The first norm of a block, where it first runs."""
        return layer.call == 0 and layer.path in self._norms

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """The statistics of a norm's input."""
        channel = channel_axis(module, x)
        others = [axis for axis in range(x.dim()) if axis != channel]
        row = self.rows[self._norms[layer.path]]
        row["norm_mean_square"] = float(x.mean(others, dtype=torch.float64).square().mean())
        # The channels' second moments average to that of all, which no pass over the channels is needed for.
        _, second = variance_and_second_moment(x)
        row["norm_variance"] = max(second - row["norm_mean_square"], 0.0)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The moments of both sides of a sum and of its total."""
        if block.name not in self.rows:
            return
        branch = branches[0] if len(branches) == 1 else sum(branches[1:], branches[0])
        for side, value in (("skip", skip), ("branch", branch), ("sum", total)):
            variance, second = variance_and_second_moment(value)
            self.rows[block.name] |= {f"{side}_variance": variance, f"{side}_second_moment": second}

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Take back what may have been told of another addition; what a norm read stays."""
        row = self.rows.get(block.name, {})
        norm: dict[str, Any] = {key: row[key] for key in ("norm_mean_square", "norm_variance") if key in row}
        super().on_missed(block, reason)
        if block.name in self.rows:
            self.rows[block.name] |= norm

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill in variances and second moments, and what the first norm would hold."""
        for side, name in (("skip", "skip"), ("branch", "branch"), ("sum", "total")):
            table[f"predicted_{side}_variance"] = [getattr(one, f"{name}_variance") for one in moments]
            table[f"predicted_{side}_second_moment"] = [getattr(one, name) for one in moments]
        table["predicted_norm_mean_square"] = [one.norm_mean_square for one in moments]
        table["predicted_norm_variance"] = [one.norm_variance for one in moments]


def variance_and_second_moment(x: Tensor) -> tuple[float, float]:
    """The biased variance and the second moment of all values of x, any shape, in one copy of it."""
    # float64: a variance of 2^200 is beyond float32, the activations it belongs to are not.
    wide = x.double().flatten()
    second, mean = float(wide.dot(wide)) / len(wide), float(wide.mean())
    return max(second - mean**2, 0.0), second


def signal_table(
    model: nn.Module, inputs: Any, residual_map: ResidualMap | None = None, *, training: bool = True
) -> pd.DataFrame:
    """What `Signal` measures on one batch, with the predictions of `predicted_moments` beside it.

    The network is left as it was.

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        residual_map: the network's map, found where it is not given.
        training: whether norms use the batch's statistics.

    Returns:
        One row per block in execution order; the columns are `COLUMNS`. NaN where a sum is no addition of two
        tensors, and in the predicted columns from the first thing on whose effect is not known, until a norm makes
        the moments known again. Behind l - 1 normalized branches of a ReLU each, the norm's predicted statistics are
        l/π + l(π - 1)/(πb) and l(1 - 1/π)(1 - 1/b) at batch size b (De & Smith, appendix C).

    Raises:
        ValueError: the network has no residual block.
    """
    return measured_by_block(Signal(), model, inputs, residual_map, training=training)
