"""One layer of a linear network as linear systems, and gradient descent on these by condition number.

Gradient descent on linear systems by condition number, measured and predicted.

On f(z) = ||Az - y||² each step multiplies the error along the i-th right singular vector of A by 1 - 2ασ_i². Hence,
with σ the singular values and κ = σ_max/σ_min ("Understanding batch normalization", Bjorck et al. 2018, section 4:
slower convergence, a smaller learning rate, gradients that differ more between subspaces):

    largest stable step         α < 1/σ_max²
    best rate, at α*            (κ² - 1)/(κ² + 1) per step,   α* = 1/(σ_max² + σ_min²)
    gradients of equal errors   σ_max² : σ_min² = κ²

Training of one layer of a linear network as linear systems with the matrix of the later layers.

In A_t … A_2 A_1 x = y only the layer A_i is trained. With Ā = A_t … A_(i+1), the layer's inputs R = A_(i-1) … A_1 x
and their decomposition R = U (Σ 0) V*,

    ||Ā A_i R - y||² = ||Ā Z - Ȳ||² + C,    Z = A_i U Σ,  Ȳ = the first n columns of y V,  C = ||the others||²

and every column of Z is an independent linear system (proposition 1 of "Understanding batch normalization", Bjorck
et al. 2018, appendix C, equations 6 to 8). The condition number κ(Ā) determines the speed of gradient descent; see
`gradient_descent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import pandas as pd
import torch
from torch import Tensor

_STEPS = 1000
_PRECISION = 1e-3
# Of the error, and the most steps to reach it.
_REDUCTION, _MOST_STEPS = 1e-3, 100_000


def descent_table(matrices: Sequence[Tensor], *, seed: int = 0) -> pd.DataFrame:
    """Measure and predict gradient descent on a linear system y = Az* per matrix: stable step, speed, gradient ratio.

    The matrices have full column rank; z* is drawn from N(0, 1), and descent starts at 0.

    Returns:
        One row per matrix: ``condition_number``; ``largest_step``; ``steps`` at the step α* to a thousandth of the
        error ||z - z*||, NaN beyond 100,000; ``gradient_ratio`` of the gradients by unit errors along the extreme
        singular vectors; and their predictions. That of the steps is exact for an error in the two extreme subspaces,
        and otherwise an upper bound.
    """
    generator, rows = torch.Generator().manual_seed(seed), []
    for matrix in matrices:
        wide = matrix.detach().to("cpu", torch.float64)
        solution = torch.randn(wide.shape[1], generator=generator, dtype=torch.float64)
        rows.append(_row(wide, solution))
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


def _row(matrix: Tensor, solution: Tensor) -> dict[str, float]:
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
        "steps": _steps(matrix, solution, 1 / (largest**2 + smallest**2)),
        "predicted_steps": float(ceil(log(_REDUCTION) / log(contraction))) if contraction > 1e-12 else 1.0,
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


def _steps(matrix: Tensor, solution: Tensor, step: float) -> float:
    error = -solution
    target = _REDUCTION * solution.norm()
    for count in range(1, _MOST_STEPS + 1):
        error = error - 2 * step * (matrix.T @ (matrix @ error))
        if error.norm() <= target:
            return float(count)
    return float("nan")


@dataclass(frozen=True)
class LinearSystems:
    """The problem min ||Ā Z - Ȳ||² + C, a linear system per column of Z.

    Attributes:
        matrix, targets: Ā of shape (outputs, p) and Ȳ of shape (outputs, n).
        constant: C, the part of the loss that does not depend on the layer.
        basis, scales: U of shape (n, n) and the diagonal of Σ, shape (n,).
    """

    matrix: Tensor
    targets: Tensor
    constant: float
    basis: Tensor
    scales: Tensor

    def variables(self, weight: Tensor) -> Tensor:
        """Compute Z = A_i U Σ for a weight A_i, both of shape (p, n)."""
        return weight @ self.basis * self.scales

    def column_losses(self, variables: Tensor) -> Tensor:
        """Compute ||Ā z_j - ȳ_j||² of every column z_j of Z, shape (n,); their sum plus C is the network's loss."""
        return (self.matrix @ variables - self.targets).square().sum(dim=0)

    def minimum(self) -> float:
        """Return the minimum of the loss over the layer, including C, each column by least squares."""
        columns = [torch.linalg.lstsq(self.matrix, column.unsqueeze(1)).solution for column in self.targets.T]
        return float(self.column_losses(torch.cat(columns, dim=1)).sum()) + self.constant


def linear_systems(weights: Sequence[Tensor], layer: int, inputs: Tensor, targets: Tensor) -> LinearSystems:
    """Reduce the training of one layer of a linear network to independent linear systems, in float64.

    Args:
        weights: A_1, …, A_t in the order in which they are applied, A_k of shape (n_k, n_(k-1)).
        layer: index of the trained layer, 0 for A_1.
        inputs: x, one column per sample, shape (n_0, m).
        targets: y, shape (n_t, m).

    Raises:
        ValueError: fewer samples than features, or rank-deficient inputs of the layer or product of the later layers.
    """
    entering = inputs.double()
    for weight in weights[:layer]:
        entering = weight.double() @ entering
    matrix = torch.eye(len(weights[layer]), dtype=torch.float64, device=entering.device)
    for weight in weights[layer + 1 :]:
        matrix = weight.double() @ matrix
    features, samples = entering.shape
    if samples < features:
        raise ValueError(f"Expected at least as many samples as features, got {samples} samples of {features}.")
    for name, factor, rank in (("inputs of", entering, features), ("layers after", matrix, matrix.shape[1])):
        if int(torch.linalg.matrix_rank(factor)) < rank:
            raise ValueError(f"Expected the {name} the trained layer to have full rank {rank}, but they do not.")
    basis, scales, right = torch.linalg.svd(entering)
    rotated = targets.double() @ right.T
    constant = float(rotated[:, features:].square().sum())
    return LinearSystems(matrix, rotated[:, :features], constant, basis, scales)
