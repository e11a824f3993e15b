"""What two examples of a batch have in common on the residual stream, measured beside what theory predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes.forward.predicted import PredictedRows, measured_by_block
from normless.residual import ResidualBlock, ResidualMap
from normless.signal import BlockMoments

SIDES = ("skip", "branch", "sum")
MEASURES = ("variance", "covariance", "correlation")
COLUMNS = (
    "block",
    "name",
    *(f"{side}_{measure}" for side in SIDES for measure in MEASURES),
    "skip_branch_covariance",
    "skip_branch_correlation",
    *(f"predicted_{side}_{measure}" for side in SIDES for measure in MEASURES),
)


@dataclass
class ExampleCovariance(PredictedRows):
    """Variance of an example and covariance of two, on the skip path, at the branch end and behind every sum.

    Both are over the channels and positions of the one network there is, which stand for draws of the weights (De &
    Smith, appendix C and equation 1): for examples j ≠ k of a batch,

        variance    mean over j of     mean(x_j²) - mean(x_j)²
        covariance  mean over j ≠ k of mean(x_j x_k) - mean(x_j) mean(x_k)

    and correlation = covariance / variance, 1/π at every depth of a normalized ReLU network. The pairs are not gone
    through: their sum is that of all products less the squares. `skip_branch_covariance` is that of an example's skip
    path and its branch, zero in theory; its correlation has both standard deviations below it.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Both sides of a sum and its total, one after the other."""
        if block.name not in self.rows:
            return
        row = self.rows[block.name]
        branch = branches[0] if len(branches) == 1 else sum(branches[1:], branches[0])
        for side, value in zip(SIDES, (skip, branch, total), strict=True):
            variance, covariance = covariance_of_examples(value)
            row |= {f"{side}_variance": variance, f"{side}_covariance": covariance}
            row[f"{side}_correlation"] = _ratio(covariance, variance)
        if skip.shape == branch.shape:
            row["skip_branch_covariance"] = _covariance(skip, branch)
            scale = row["skip_variance"] * row["branch_variance"]
            row["skip_branch_correlation"] = _ratio(row["skip_branch_covariance"], sqrt(scale) if scale > 0 else 0.0)

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill in variances, and covariances and correlations of two examples."""
        for side, name in (("skip", "skip"), ("branch", "branch"), ("sum", "total")):
            variance = pd.Series([getattr(one, f"{name}_variance") for one in moments], dtype=float)
            covariance = pd.Series([getattr(one, f"{name}_covariance") for one in moments], dtype=float)
            table[f"predicted_{side}_variance"] = variance
            table[f"predicted_{side}_covariance"] = covariance
            table[f"predicted_{side}_correlation"] = (covariance / variance).where(variance > 0)


def covariance_of_examples(x: Tensor) -> tuple[float, float]:
    """Variance of an example and covariance of two over their features, averaged over examples and pairs.

    Args:
        x: activations, shape (B, …); the covariance of a single example with others is NaN.
    """
    wide = (x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)).double()
    means, squares = wide.mean(1), torch.linalg.vector_norm(wide, dim=1).square() / wide.shape[1]
    variance = float((squares - means.square()).mean())
    count = len(wide)
    if count < 2:
        return variance, nan
    products = wide.sum(0).square().mean() - squares.sum()
    of_means = means.sum().square() - means.square().sum()
    return variance, float(products - of_means) / (count * (count - 1))


def _covariance(skip: Tensor, branch: Tensor) -> float:
    """Of an example's two sides over its features, averaged over examples."""
    one, other = skip.flatten(1).double(), branch.flatten(1).double()
    return float(((one * other).mean(1) - one.mean(1) * other.mean(1)).mean())


def _ratio(value: float, over: float) -> float:
    return value / over if over > 0 else nan


def covariance_table(
    model: nn.Module, inputs: Any, residual_map: ResidualMap | None = None, *, training: bool = True
) -> pd.DataFrame:
    """What `ExampleCovariance` measures on one batch, with the predictions of `predicted_moments` beside it.

    The network is left as it was. For block l of a normalized network of one ReLU and one linear layer a block the
    predictions become variance l and covariance l/π.

    Args:
        model: a network.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        residual_map: the network's map, found where it is not given.
        training: whether norms use the batch's statistics.

    Returns:
        One row per block in execution order; the columns are `COLUMNS`. NaN where a sum is no addition of two
        tensors, where the variance below a correlation is zero, and where no prediction is known.

    Raises:
        ValueError: the network has no residual block.
    """
    return measured_by_block(ExampleCovariance(), model, inputs, residual_map, training=training)
