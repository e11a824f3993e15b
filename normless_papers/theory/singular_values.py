"""Products of random matrices, their singular values, and the extremes of these by the number of factors.

Square random matrices with independent entries, and the growth of their products' singular values.

Theorem 1 takes the size to infinity at a fixed number of factors. For fixed N and M → ∞ the singular values of
X_M … X_1 behave as exp(λ_i·M), with the Lyapunov exponents

    λ_i = (ψ((N-i+1)/2) + log(2g²/N)) / 2,    i = 1 … N

for Gaussian entries of variance g²/N, with the digamma function ψ (Newman 1986). Hence the condition number grows
exponentially, by the factor exp(λ_1 - λ_N) per matrix, for every gain g.

Singular values of a long product of matrices, including small ones.

Multiplication loses singular values below the largest times the unit roundoff, a condition number of about 10¹⁵
(seven Gaussian factors of size 1000). Here the product is U·D·T, with U orthogonal, D diagonal and stored as
logarithms, T well conditioned. A new factor X gives (X·U)·D·T; the columns of X·U, sorted by their weight in D, are
orthogonalized by QR, since scaling columns loses no precision (Loh et al. 1989; sorting instead of pivoting: Tomás,
Bai et al. 2012). The one-sided Jacobi method then computes the singular values of D·T to high *relative* precision
(LAPACK's gejsv: Drmač and Veselić 2008).

Singular values of products of random matrices, and their extremes by the number of factors.

The linear network A_M … A_1 at initialization is such a product; its condition number determines the speed of
gradient descent ("Understanding batch normalization", Bjorck et al. 2018, section 4, figures 8, 11 and 12). Values
come from `GradedProduct`, so condition numbers beyond 10¹⁵ are not rounding errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, log, log10, sqrt
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from scipy.linalg.lapack import dgejsv
from scipy.special import digamma
from scipy.stats import ks_1samp, ks_2samp
from torch import Tensor

from normless_papers.theory.fuss_catalan import cumulative, quantile, support_edge

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
    return (scale * standardized[entries]() for _ in itertools.count())


def lyapunov_exponents(size: int) -> Tensor:
    """Return the exponents λ_i of products of N × N Gaussian matrices, largest first (natural logarithm per factor).

    Of entries of variance 1/N; shape (N,), float64. Their sum is the mean of log|det X| of one factor.
    """
    if size < 1:
        raise ValueError(f"Expected matrices of at least one row, got size {size}.")
    freedom = np.arange(size, 0, -1)
    return torch.from_numpy((digamma(freedom / 2) + log(2 / size)) / 2)


def condition_growth(size: int) -> float:
    """Return λ_1 - λ_N for size N: the growth per factor of the logarithm of a long product's condition number."""
    exponents = lyapunov_exponents(size)
    return float(exponents[0] - exponents[-1])


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


def singular_value_table(
    factors: Sequence[int] = (1, 2, 3),
    size: int = 1000,
    *,
    runs: int = 5,
    entries: Entries = "gaussian",
    gain: float | str = "xavier",
    seed: int = 0,
) -> pd.DataFrame:
    """Compute all singular values of random products, several runs of each number of factors (figure 8).

    Within a run the longer products extend the shorter ones, as a network grows by layers.

    Args:
        factors: the numbers of factors M, each of shape (N, N) with N the `size`.
        runs: independent repetitions.
        entries, gain, seed: as in `random_factors`.

    Returns:
        One row per singular value s, largest first within a product: ``factors``, ``run``, and ``unit_squared``
        s²/g^(2M), whose limiting law is that of `normless_papers.theory.fuss_catalan`.

    Raises:
        ValueError: a count is below 1.
    """
    spectra = _spectra(factors, size, runs, entries, gain, seed)
    log_gain = log(gain_of(gain, size))
    tables = []
    for count, run, logarithms in spectra:
        values = logarithms.numpy()
        squares = np.exp(2 * (values - count * log_gain))
        tables.append(pd.DataFrame({"factors": count, "run": run, "unit_squared": squares}))
    return pd.concat(tables, ignore_index=True)


def extremes_table(
    factors: Sequence[int] = tuple(range(1, 11)),
    size: int = 1000,
    *,
    runs: int = 5,
    entries: Entries = "gaussian",
    gain: float | str = "xavier",
    seed: int = 0,
) -> pd.DataFrame:
    """Compute the extreme singular values and condition number of every run; see `singular_value_table`.

    One row per number of factors and run: ``factors``, ``run``, ``largest``, ``log10_condition``.
    """
    rows = []
    for count, run, logarithms in _spectra(factors, size, runs, entries, gain, seed):
        largest, smallest = float(logarithms[0]) / log(10), float(logarithms[-1]) / log(10)
        row = {"factors": count, "run": run, "largest": 10**largest}
        rows.append(row | {"log10_condition": largest - smallest})
    return pd.DataFrame(rows)


def conditioning_table(extremes: pd.DataFrame, size: int) -> pd.DataFrame:
    """Average the condition number and the largest value over runs, with predictions (figures 11 and 12).

    The average is of the condition number's logarithm, since its own mean is infinite even for one Gaussian matrix
    (Edelman 1988). Theorem 1 predicts the largest value √((M+1)^(M+1)/M^M), approached for large N on average
    from below, and the order of magnitude of the condition number, for M small compared to N, as the ratio of that
    edge to the quantile 1/(2N), near the smallest of N values.

    Returns:
        From rows of `extremes_table` of this size and entries of variance 1/N, one row per number of factors:
        ``factors``, ``runs``, mean, sample deviation (NaN for a single run) and prediction of ``log10_condition`` and
        ``largest`` (``mean_…``, ``std_…``, ``predicted_…``), and ``predicted_log10_growth`` per factor; see
        `condition_growth`.
    """
    aggregates = {
        f"{kind}_{name}": (name, kind) for name in ("log10_condition", "largest") for kind in ("mean", "std")
    }
    table = extremes.groupby("factors", sort=True).agg(runs=("run", "count"), **aggregates).reset_index()
    counts = [int(count) for count in table["factors"]]
    edges = {count: support_edge(count, "values") for count in counts}
    floors = {count: float(quantile(1 / (2 * size), count, "values")) for count in counts}
    table["predicted_log10_condition"] = [log10(edges[count] / floors[count]) for count in counts]
    table["predicted_largest"] = [edges[count] for count in counts]
    table["predicted_log10_growth"] = condition_growth(size) / log(10)
    return table


def distance_to_law(values: pd.DataFrame) -> pd.DataFrame:
    """Compute the Kolmogorov–Smirnov distance of each product's singular values from the limiting law.

    From rows of `singular_value_table`, one row per number of factors and run: ``factors``, ``run``, ``distance``
    (the largest difference of the shares below any point, 0..1), ``beyond_edge`` (the share above the edge).
    """
    rows = []
    law: Any = cumulative
    products: Any = values.groupby(["factors", "run"], sort=False)["unit_squared"]
    for (count, run), squares in products:
        distance = float(ks_1samp(squares, law, args=(int(count),), method="asymp").statistic)
        beyond = float((squares > support_edge(int(count))).mean())
        rows.append({"factors": int(count), "run": int(run), "distance": distance, "beyond_edge": beyond})
    return pd.DataFrame(rows)


def distance_between(values: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Compute the Kolmogorov–Smirnov distance of two tables of `singular_value_table`, pooling runs.

    Both are in units of their gain, so only the shape matters (universality, section 4). One row per number of
    factors in both: ``factors``, ``distance`` (0..1).
    """
    tables: Any = [dict(list(table.groupby("factors")["unit_squared"])) for table in (values, others)]
    here, there = tables
    rows = [
        (int(count), float(ks_2samp(here[count], there[count], method="asymp").statistic))
        for count in sorted(here.keys() & there.keys())
    ]
    return pd.DataFrame(rows, columns=["factors", "distance"])


def _spectra(
    factors: Sequence[int], size: int, runs: int, entries: Entries, gain: float | str, seed: int
) -> list[tuple[int, int, Tensor]]:
    """Return the number of factors, the run and the logarithms of the singular values of each product."""
    if not factors or min(factors) < 1 or runs < 1:
        raise ValueError(f"Expected numbers of factors and of runs from 1 up, got {list(factors)} and {runs}.")
    counts, spectra = set(factors), []
    for run in range(runs):
        product = GradedProduct(size)
        draws = random_factors(size, entries=entries, gain=gain, seed=seed, run=run)
        while product.factors < max(counts):
            product.multiply(next(draws))
            if product.factors in counts:
                spectra.append((product.factors, run, product.log_singular_values()))
    return sorted(spectra, key=lambda spectrum: spectrum[:2])
