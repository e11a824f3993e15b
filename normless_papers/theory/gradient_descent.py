"""Gradient descent on linear systems by condition number, measured and predicted.

On f(z) = ||Az - y||² each step multiplies the error along the i-th right singular vector of A by 1 - 2ασ_i². Hence,
with σ the singular values and κ = σ_max/σ_min ("Understanding batch normalization", Bjorck et al. 2018, section 4:
slower convergence, a smaller learning rate, gradients that differ more between subspaces):

    largest stable step         α < 1/σ_max²
    best rate, at α*            (κ² - 1)/(κ² + 1) per step,   α* = 1/(σ_max² + σ_min²)
    gradients of equal errors   σ_max² : σ_min² = κ²
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

import pandas as pd
import torch
from torch import Tensor

_STEPS = 1000
_PRECISION = 1e-3


def descent_table(
    matrices: Sequence[Tensor], *, reduction: float = 1e-3, max_steps: int = 100_000, seed: int = 0
) -> pd.DataFrame:
    """Measure and predict gradient descent on a linear system y = Az* per matrix: stable step, speed, gradient ratio.

    The matrices have full column rank; z* is drawn from N(0, 1), and descent starts at 0.

    Returns:
        One row per matrix: ``condition_number``; ``largest_step``; ``steps`` at the step α* to this reduction of the
        error ||z - z*||, NaN beyond `max_steps`; ``gradient_ratio`` of the gradients by unit errors along the extreme
        singular vectors; and their predictions. That of the steps is exact for an error in the two extreme subspaces,
        and otherwise an upper bound.
    """
    if not 0 < reduction < 1:
        raise ValueError(f"Expected a reduction between 0 and 1, got {reduction}.")
    generator, rows = torch.Generator().manual_seed(seed), []
    for matrix in matrices:
        wide = matrix.detach().to("cpu", torch.float64)
        if wide.shape[0] < wide.shape[1] or int(torch.linalg.matrix_rank(wide)) < wide.shape[1]:
            raise ValueError(f"Expected matrices of full column rank, got one of shape {tuple(wide.shape)} without.")
        solution = torch.randn(wide.shape[1], generator=generator, dtype=torch.float64)
        rows.append(_row(wide, solution, reduction, max_steps))
    return pd.DataFrame(rows)


def largest_stable_step(matrix: Tensor, solution: Tensor) -> float:
    """Find the largest step α at which gradient descent on ||Az - Az*||² from z = 0 is stable, by bisection on runs.

    A run is unstable if its loss rises in the last of 1000 steps. Accurate to 1%.
    """
    low = 1 / (2 * float(matrix.square().sum()))
    high = 2 * low
    while not _grows(matrix, solution, high):
        low, high = high, 2 * high
    while high > (1 + _PRECISION) * low:
        middle = (low + high) / 2
        low, high = (low, middle) if _grows(matrix, solution, middle) else (middle, high)
    return low


def _row(matrix: Tensor, solution: Tensor, reduction: float, max_steps: int) -> dict[str, float]:
    _, singular_values, right = torch.linalg.svd(matrix, full_matrices=False)
    largest, smallest = float(singular_values[0]), float(singular_values[-1])
    condition = largest / smallest
    contraction = (condition**2 - 1) / (condition**2 + 1)
    # Autograd is independent of the prediction's formula.
    gradient = torch.func.grad(lambda z: (matrix @ z).square().sum())
    return {
        "condition_number": condition,
        "largest_step": largest_stable_step(matrix, solution),
        "predicted_largest_step": largest**-2,
        "steps": _steps(matrix, solution, 1 / (largest**2 + smallest**2), reduction, max_steps),
        "predicted_steps": float(ceil(log(reduction) / log(contraction))) if contraction > 1e-12 else 1.0,
        "gradient_ratio": float(gradient(right[0]).norm() / gradient(right[-1]).norm()),
        "predicted_gradient_ratio": condition**2,
    }


def _grows(matrix: Tensor, solution: Tensor, step: float) -> bool:
    error, loss = -solution, torch.tensor(0.0)
    for _ in range(_STEPS):
        before, residual = loss, matrix @ error
        loss = residual.square().sum()
        error = error - 2 * step * (matrix.T @ residual)
    return not bool(loss.isfinite() and loss <= before)


def _steps(matrix: Tensor, solution: Tensor, step: float, reduction: float, max_steps: int) -> float:
    error = -solution
    target = reduction * solution.norm()
    for count in range(1, max_steps + 1):
        error = error - 2 * step * (matrix.T @ (matrix @ error))
        if error.norm() <= target:
            return float(count)
    return float("nan")
