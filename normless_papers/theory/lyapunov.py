"""How fast the singular values of a product of Gaussian matrices of fixed size grow with every factor.

Theorem 1 lets the size go to infinity at a fixed number of factors. The other limit is just as exact: for fixed N
and M → ∞ the singular values of X_M … X_1 behave as exp(λ_i·M), with the Lyapunov exponents

    λ_i = (ψ((N-i+1)/2) + log(2g²/N)) / 2,    i = 1 … N

for Gaussian entries of variance g²/N, ψ the digamma function (Newman 1986). The condition number hence grows
exponentially, by the factor exp(λ_1 - λ_N) per matrix, whatever the gain g.
"""

from __future__ import annotations

from math import log

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor

from normless_papers.theory.random_factors import gain_of


def lyapunov_exponents(size: int, gain: float | str = "xavier") -> Tensor:
    """The N exponents λ_i of products of N × N Gaussian matrices, largest first (natural logarithm per factor).

    Their sum is the mean of log|det X| of one factor, at any number of factors.

    Args:
        size: N.
        gain: g, a number or a name as in `gain_of`.

    Returns:
        Shape (N,), float64.

    Raises:
        ValueError: a size below 1, or a gain that is not one.
    """
    if size < 1:
        raise ValueError(f"Expected matrices of at least one row, got size {size}.")
    freedom = np.arange(size, 0, -1)
    exponents = (digamma(freedom / 2) + log(2 / size)) / 2 + log(gain_of(gain, size))
    return torch.from_numpy(exponents)


def condition_growth(size: int) -> float:
    """λ_1 - λ_N: what each further factor adds to the natural logarithm of the condition number, for long products.

    Args:
        size: N.

    Raises:
        ValueError: a size below 1.
    """
    exponents = lyapunov_exponents(size)
    return float(exponents[0] - exponents[-1])
