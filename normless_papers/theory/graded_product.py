"""Singular values of a long product of matrices, including small ones.

Multiplication loses singular values below the largest times the unit roundoff, a condition number of about 10¹⁵
(seven Gaussian factors of size 1000). Here the product is U·D·T, with U orthogonal, D diagonal and stored as
logarithms, T well conditioned. A new factor X gives (X·U)·D·T; the columns of X·U, sorted by their weight in D, are
orthogonalized by QR, since scaling columns loses no precision (Loh et al. 1989; sorting instead of pivoting: Tomás,
Bai et al. 2012). The one-sided Jacobi method then computes the singular values of D·T to high *relative* precision
(LAPACK's gejsv: Drmač and Veselić 2008).
"""

from __future__ import annotations

from math import log

import numpy as np
import torch
from scipy.linalg.lapack import dgejsv
from torch import Tensor

# Beyond this range of singular values the rotations underflow.
_RANGE = 280 * log(10)


class GradedProduct:
    """A product X_k … X_2 X_1 of N × N factors, given one at a time as layers of a linear network.

    The relative error of each singular value is about Σ_k κ(X_k)·1e-16 for random factors. The smallest must be above
    1e-280 times the largest: up to about 150 Gaussian factors of size 1000. ValueError for N < 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"Expected factors of at least one row, got size {size}.")
        self.size = size
        self.factors = 0
        self._basis = torch.eye(size, dtype=torch.float64)
        self._logarithms = torch.zeros(size, dtype=torch.float64)
        self._rows = torch.eye(size, dtype=torch.float64)

    def multiply(self, factor: Tensor) -> None:
        """Multiply by a factor from the left; ValueError unless it is finite and of shape (N, N)."""
        if factor.shape != (self.size, self.size):
            raise ValueError(
                f"Expected a factor of shape ({self.size}, {self.size}), got {tuple(factor.shape)}; all factors are "
                "square matrices of the same size."
            )
        if not factor.isfinite().all():
            raise ValueError("Expected finite numbers in a factor, got an infinity or NaN.")
        wide = factor.detach().to("cpu", torch.float64)
        scale = float(wide.abs().max()) or 1.0
        columns = (wide / scale) @ self._basis
        order = (columns.norm(dim=0).log() + self._logarithms).argsort(descending=True)
        grades = self._logarithms[order]
        self._basis, triangle = torch.linalg.qr(columns[:, order])
        pivots = triangle.diagonal().abs()
        grading = (grades.unsqueeze(0) - grades.unsqueeze(1)).nan_to_num(0.0).exp()
        divisors = torch.where(pivots > 0, pivots, 1.0).unsqueeze(1)
        self._rows = (triangle / divisors * grading).triu() @ self._rows[order]
        self._logarithms = grades + pivots.log() + log(scale)
        self.factors += 1

    def log_singular_values(self) -> Tensor:
        """Return the logarithms of all singular values, shape (N,), float64, largest first; -∞ for exactly 0.

        ValueError if the smallest non-zero value is below 1e-280 times the largest.
        """
        largest = self._logarithms.max()
        if largest.isneginf():
            return torch.full((self.size,), -torch.inf, dtype=torch.float64)
        relative = self._logarithms - largest
        if (relative.isfinite() & (relative < -_RANGE)).any():
            raise ValueError(
                f"After {self.factors} factors the smallest singular value is below 1e-280 times the largest, "
                "which exceeds the range of floating point; use fewer factors."
            )
        graded = (relative.exp().unsqueeze(1) * self._rows).numpy()
        values, _, _, work, _, info = dgejsv(np.asfortranarray(graded.T), joba=0, jobu=3, jobv=3, jobr=0, jobt=1)
        if info:
            raise ArithmeticError(f"LAPACK's gejsv did not converge (info {info}).")
        scaled = torch.from_numpy(np.array(values, dtype=np.float64))
        return scaled.log() + largest + log(work[0] / work[1])
