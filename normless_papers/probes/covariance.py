"""Covariance of two examples of a batch on the residual stream, measured and predicted (De & Smith, appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from normless.probes import PredictedRows
from normless.residual import ResidualBlock
from normless.signal import BlockMoments

SIDES = ("skip", "branch", "sum")
MEASURES = ("variance", "covariance", "correlation")


@dataclass
class ExampleCovariance(PredictedRows):
    """Variance of an example and covariance of two on the skip path, at the branch end and after every sum.

    Both are taken over channels and positions in place of draws of the weights (De & Smith, appendix C, equation 1):
    for examples j ≠ k of a batch,

        variance    mean over j of     mean(x_j²) - mean(x_j)²
        covariance  mean over j ≠ k of mean(x_j x_k) - mean(x_j) mean(x_k)

    and correlation = covariance / variance, 1/π at every depth of a normalized ReLU network: with one ReLU and one
    linear layer a block, block l has variance l and covariance l/π. `skip_branch_covariance` is that of an example's
    skip path and branch, zero in theory, and `skip_branch_correlation` its ratio to both standard deviations. The
    `predicted_…` columns come from `predicted_moments`; unknown values are NaN.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "block",
        "name",
        *(f"{side}_{measure}" for side in SIDES for measure in MEASURES),
        "skip_branch_covariance",
        "skip_branch_correlation",
        *(f"predicted_{side}_{measure}" for side in SIDES for measure in MEASURES),
    )

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        row: dict[str, float] = {}
        branch = sum(branches[1:], branches[0])
        for side, value in zip(SIDES, (skip, branch, total), strict=True):
            variance, covariance = covariance_of_examples(value)
            correlation = covariance / variance if variance > 0 else nan
            row |= {
                f"{side}_variance": variance,
                f"{side}_covariance": covariance,
                f"{side}_correlation": correlation,
            }
        if skip.shape == branch.shape:
            x, f = skip.flatten(1).double(), branch.flatten(1).double()
            covariance = float(((x * f).mean(1) - x.mean(1) * f.mean(1)).mean())
            scale = row["skip_variance"] * row["branch_variance"]
            row["skip_branch_covariance"] = covariance
            row["skip_branch_correlation"] = covariance / sqrt(scale) if scale > 0 else nan
        self.add(block.name, row)

    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Add predicted variances, covariances and correlations."""
        for side, name in (("skip", "skip"), ("branch", "branch"), ("sum", "total")):
            for measure in ("variance", "covariance"):
                numbers = [getattr(block, f"{name}_{measure}") for block in moments]
                table[f"predicted_{side}_{measure}"] = pd.Series(numbers, dtype=float)
            variance = table[f"predicted_{side}_variance"]
            correlation = table[f"predicted_{side}_covariance"] / variance
            table[f"predicted_{side}_correlation"] = correlation.where(variance > 0)


def covariance_of_examples(x: Tensor) -> tuple[float, float]:
    """Return the variance of an example and the covariance of two, averaged over examples and pairs.

    Args:
        x: activations, shape (B, …); the covariance is NaN for B = 1.
    """
    wide = (x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)).double()
    means, squares = wide.mean(1), torch.linalg.vector_norm(wide, dim=1).square() / wide.shape[1]
    variance = float((squares - means.square()).mean())
    count = len(wide)
    if count < 2:
        return variance, nan
    # The sum over pairs is the sum of all products less the squares.
    products = wide.sum(0).square().mean() - squares.sum()
    of_means = means.sum().square() - means.square().sum()
    return variance, float(products - of_means) / (count * (count - 1))
