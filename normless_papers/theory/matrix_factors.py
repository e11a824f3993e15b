"""Square random matrices with independent entries, and the growth of their products' singular values.

Theorem 1 takes the size to infinity at a fixed number of factors. For fixed N and M → ∞ the singular values of
X_M … X_1 behave as exp(λ_i·M), with the Lyapunov exponents

    λ_i = (ψ((N-i+1)/2) + log(2g²/N)) / 2,    i = 1 … N

for Gaussian entries of variance g²/N, with the digamma function ψ (Newman 1986). Hence the condition number grows
exponentially, by the factor exp(λ_1 - λ_N) per matrix, for every gain g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from math import isfinite, log, sqrt
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor

Entries: TypeAlias = Literal["gaussian", "uniform", "signs"]
"""The distribution of the standardized entries: N(0, 1), uniform in (-√3, √3), or ±1."""

GAINS = MappingProxyType({"xavier": 1.0, "he": sqrt(2.0)})
"""The g of a standard deviation g/√N in a square layer: Xavier's 2/(N+N) and He's 2/N as variances."""


def gain_of(gain: float | str, size: int) -> float:
    """Return g of a deviation g/√N, given g, "xavier" (1, theorem 1), "he" (√2) or "standard" (√N, figure 8)."""
    if isinstance(gain, str):
        gains = {**GAINS, "standard": sqrt(size)}
        if gain not in gains:
            raise ValueError(f"gain is {', '.join(map(repr, gains))} or a number, got {gain!r}.")
        return gains[gain]
    if not (isfinite(gain) and gain > 0):
        raise ValueError(f"Expected a positive, finite gain, got {gain}.")
    return float(gain)


def random_factors(
    size: int, *, entries: Entries = "gaussian", gain: float | str = "xavier", seed: int = 0, run: int = 0
) -> Iterator[Tensor]:
    """Draw an infinite sequence of independent N × N float64 matrices with entries of mean 0 and deviation g/√N.

    Matrices of equal seed, run and entries are equal up to the gain g (see `gain_of`), and independent otherwise.
    ValueError for unknown entries or gains, or a size below 1.
    """
    if size < 1:
        raise ValueError(f"Expected matrices of at least one row, got size {size}.")
    names = get_args(Entries)
    if entries not in names:
        raise ValueError(f"entries is {', '.join(map(repr, names))}, got {entries!r}.")
    scale = gain_of(gain, size) / sqrt(size)
    state = np.random.SeedSequence((seed, run, names.index(entries))).generate_state(1, np.uint64)
    order: dict[str, Any] = {"generator": torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))}
    order |= {"size": (size, size), "dtype": torch.float64}
    standardized: dict[str, Callable[[], Tensor]] = {
        "gaussian": lambda: torch.randn(**order),
        "uniform": lambda: (2 * torch.rand(**order) - 1) * sqrt(3),
        "signs": lambda: 2 * torch.randint(2, **order) - 1,
    }
    return (scale * standardized[entries]() for _ in count())


def lyapunov_exponents(size: int, gain: float | str = "xavier") -> Tensor:
    """Return the exponents λ_i of products of N × N Gaussian matrices, largest first (natural logarithm per factor).

    Shape (N,), float64; their sum is the mean of log|det X| of one factor. `gain` is that of `random_factors`.
    """
    if size < 1:
        raise ValueError(f"Expected matrices of at least one row, got size {size}.")
    freedom = np.arange(size, 0, -1)
    return torch.from_numpy((digamma(freedom / 2) + log(2 / size)) / 2 + log(gain_of(gain, size)))


def condition_growth(size: int) -> float:
    """Return λ_1 - λ_N for size N: the growth per factor of the logarithm of a long product's condition number."""
    exponents = lyapunov_exponents(size)
    return float(exponents[0] - exponents[-1])
