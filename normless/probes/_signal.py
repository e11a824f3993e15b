"""Growth of the signal along the skip path, measured and predicted from the same pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, is_tensor, nn
from torch.utils._pytree import tree_leaves

from normless._internal.arguments import arguments_of
from normless.nn._channels import channel_axis, in_pieces
from normless.probes.hooks._watcher import PROBES, BlockWatcher, Setting, first_tensor
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.signal import BlockMoments as BlockMoments
from normless.signal._predictions import block_moments
from normless.state import preserve_state

_MEASURED = (
    *(f"{side}_{moment}" for moment in ("variance", "second_moment") for side in ("skip", "branch", "sum")),
    "norm_mean_square",
    "norm_variance",
)
COLUMNS = ("block", "name", *_MEASURED, *(f"predicted_{name}" for name in _MEASURED))


class PredictedRows(BlockWatcher):
    """A watcher whose table has columns that are predicted from the weights; a pass leaves them empty."""

    @abstractmethod
    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill in these columns; `moments` belong to the rows of the table."""


def predicted_moments(
    model: nn.Module, residual_map: ResidualMap, inputs: Any, *, training: bool = True
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and after the sum of every block: `block_moments`.

    Args:
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        training: whether norms use the batch's statistics and dropout drops.
    """
    arguments = arguments_of(inputs)
    first, tensor = first_tensor(arguments), next(filter(is_tensor, tree_leaves(arguments)), None)
    examples = next((len(each) for each in (first, tensor) if each is not None and each.dim()), 1)
    with preserve_state(model, training=training):
        return block_moments(model, residual_map, first, max(examples, 1))


@PROBES.register("signal")
@dataclass
class Signal(PredictedRows):
    """Variance and second moment on the skip path, at the branch end and after the sum of every block.

    Moments are over examples, channels and positions (De & Smith, figures 2 and 5), of the branch as it enters the
    sum, multiplier applied, several branches added. `norm_mean_square` and `norm_variance` are the squared mean and
    the biased variance of the input of the block's first norm by channel, averaged over channels. NaN stands for a
    sum that is not an addition of two tensors and for a block without a norm.

    The `predicted_…` columns come from `predicted_moments`, NaN from a layer with unknown effect to the next norm.
    After l - 1 normalized branches of one ReLU, predicted_norm_mean_square is l/π + l(π - 1)/(πb) and
    predicted_norm_variance l(1 - 1/π)(1 - 1/b) at batch size b (De & Smith, appendix C).
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    independent: ClassVar[tuple[str, ...]] = ("norm_mean_square", "norm_variance")

    def on_start(self, setting: Setting) -> None:
        """Find the first norm of every block."""
        super().on_start(setting)
        self._norms = {block.norms[0]: block.name for block in reversed(setting.map.blocks) if block.norms}

    def wants(self, layer: Layer) -> bool:
        """Whether a layer is the first norm of a block, at its first call."""
        return layer.call == 0 and layer.path in self._norms

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Measure the statistics of a norm's input."""
        channel = channel_axis(module, x)
        others = [axis for axis in range(x.dim()) if axis != channel]
        means, second = _averages(x, others)
        mean_square = means.square().mean()
        # The mean over channels of the second moments is that of all values.
        variance = (second - mean_square).clamp_min(0.0)
        self.add(self._norms[layer.path], {"norm_mean_square": mean_square, "norm_variance": variance})

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Measure both sides of a sum and its total."""
        if block.name in self.rows:
            for side, value in (("skip", skip), ("branch", sum(branches[1:], branches[0])), ("sum", total)):
                self.add(block.name, named_moments(side, value))

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Add predicted variances, second moments and norm statistics."""
        for name in _MEASURED:
            predicted = name.replace("sum_", "total_").removesuffix("_second_moment")
            table[f"predicted_{name}"] = [getattr(moment, predicted) for moment in moments]


@PROBES.register("backward")
@dataclass
class BlockGradients(BlockWatcher):
    """Norms of every residual sum x_l and of its gradient ∂L/∂x_l, over the whole batch, and their product.

    `relative_change` = ‖x_l‖·‖∂L/∂x_l‖ bounds to first order the change of the loss (nats) under a change of x_l by
    its own size, in any units of x_l. It is at least the loss minus the entropy of the prediction if the layers after
    x_l are positively homogeneous (Zhang et al., theorem 1).
    """

    columns: ClassVar[tuple[str, ...]] = ("block", "name", "sum_norm", "gradient_norm", "relative_change")

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Store the norm of a sum."""
        self.add(block.name, {"sum_norm": total.double().norm()})

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """Store the norm of its gradient."""
        # The sum of a missed block is unknown.
        if "sum_norm" in self.rows.get(block.name, {}):
            norm = gradient.double().norm()
            self.add(block.name, {"gradient_norm": norm, "relative_change": norm * self.rows[block.name]["sum_norm"]})


def named_moments(place: str, x: Tensor) -> dict[str, Tensor]:
    """Return the biased variance and the second moment of all values of x as columns for a place."""
    mean, second = _averages(x.flatten(), [0])
    return {f"{place}_variance": (second - mean**2).clamp_min(0.0), f"{place}_second_moment": second}


def _averages(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the means of x over some axes and the second moment of all values, in float64, in one pass over x."""
    sums, squares = [], []
    for piece in in_pieces(x):
        # A variance of 2^200 overflows float32, activations of that variance do not.
        wide = piece.double()
        sums.append(wide.sum(tuple(axes)))
        squares.append(torch.dot(wide.flatten(), wide.flatten()))
    total = torch.stack(sums).sum(0)
    return total * (total.numel() / x.numel()), torch.stack(squares).sum() / x.numel()
