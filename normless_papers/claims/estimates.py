"""Estimates: mean, deviation and number of replicates, and the 95 % interval of a mean or a difference of means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

# Top-1 accuracy of ResNet-50 on ImageNet over five seeds: 23.60 ± 0.12 % error (Goyal et al. 2017, table 1).
IMAGENET_DEVIATION = 0.12


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation and number of replicates; an exact quantity is `Estimate(value)`.

    The deviation of a single replicate is NaN. Estimates with the same seeds in `by_seed` are compared seed by seed;
    `name` labels the numbers of a check.
    """

    mean: float
    deviation: float = 0.0
    n: int = 1
    by_seed: Mapping[int, float] = field(default_factory=dict)
    name: str = field(default="", compare=False)

    @property
    def standard_error(self) -> float:
        """Return deviation / √n."""
        return self.deviation / math.sqrt(self.n)

    def scaled(self, factor: float, offset: float = 0.0) -> Estimate:
        """Return the estimate of factor · x + offset."""
        by_seed = {seed: factor * value + offset for seed, value in self.by_seed.items()}
        return Estimate(factor * self.mean + offset, abs(factor) * self.deviation, self.n, by_seed)


UNKNOWN = Estimate(math.nan, math.nan)

Quantity: TypeAlias = "Estimate | float | pd.Series[Any]"
"""An estimate, an exact number, or a number per draw."""


def estimate_of(quantity: Quantity) -> Estimate:
    """Return the estimate of a quantity."""
    if isinstance(quantity, pd.Series):
        return replicates(quantity)
    return quantity if isinstance(quantity, Estimate) else Estimate(quantity)


def half_width(*estimates: Estimate) -> float:
    """Return half the 95 % interval of a mean, or of a sum or difference of independent means; NaN if unknown.

    With standard errors e_i it is q · √Σ e_i², with q the 97.5 % quantile of Student's t with the
    degrees of freedom of Welch and Satterthwaite, (Σ e_i²)² / Σ e_i⁴ / (n_i - 1). Estimates with n = 1 have a
    known deviation.
    """
    variances = [estimate.standard_error**2 for estimate in estimates]
    # Squares of the smallest errors underflow to 0.
    terms = sum(v**2 / (e.n - 1) for v, e in zip(variances, estimates, strict=True) if v > 0 and e.n > 1)
    freedom = sum(variances) ** 2 / terms if terms else math.inf
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(variances))


def above_zero(gap: float, *estimates: Estimate) -> bool | None:
    """Decide at 95 % whether a sum or difference of independent means is above 0; None if undecided or NaN."""
    needed = half_width(*estimates)
    return None if math.isnan(gap) or math.isnan(needed) or abs(gap) <= needed else gap > 0


def over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """Return mean and sample standard deviation over independent draws; the deviation of a single draw is NaN.

    Raises:
        ValueError: there are no draws.
    """
    numbers = np.asarray(list(values), dtype=float)
    if not len(numbers):
        raise ValueError("An estimate needs at least one draw, got none.")
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Estimate(float(numbers.mean()), deviation, len(numbers))


def decades_over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """Return `over_draws` of log₁₀ of the values; 0 gives -∞, negative values NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return over_draws(np.log10(np.asarray(list(values), dtype=float)))


def replicates(values: pd.Series, best: int | None = None, *, minimized: bool = False, name: str = "") -> Estimate:
    """Return the estimate over the `best` replicates, or over all and by seed; `values` are indexed by seed."""
    numbers, sign = values.to_numpy(dtype=float), 1 if minimized else -1
    chosen = sign * np.sort(sign * numbers)[: best or len(numbers)]
    estimate = replace(over_draws(chosen), name=name)
    if len(chosen) < len(numbers):
        return estimate
    by_seed = {int(seed): float(value) for seed, value in zip(values.index, numbers, strict=True)}
    return replace(estimate, by_seed=by_seed)


def single_run(value: float) -> Estimate:
    """Return a run of ResNet-50 on ImageNet, in percent; two differ if 1.96 · √2 · 0.12 = 0.33 points apart."""
    return Estimate(value, IMAGENET_DEVIATION, 1)


def combined(terms: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return Σ w_i x_i of weights w_i and estimates x_i: by seed if all have the same seeds, else independent."""
    seeds = [sorted(estimate.by_seed) for _, estimate in terms]
    if seeds[0] and all(own == seeds[0] for own in seeds):
        sums = {seed: math.fsum(weight * estimate.by_seed[seed] for weight, estimate in terms) for seed in seeds[0]}
        return replicates(pd.Series(sums, dtype=float))
    mean = math.fsum(weight * estimate.mean for weight, estimate in terms)
    deviation = math.hypot(*(weight * estimate.deviation for weight, estimate in terms))
    return Estimate(mean, deviation, min(estimate.n for _, estimate in terms))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return first - second, see `combined`."""
    return combined([(1.0, first), (-1.0, second)])


def quantity_table(quantities: Mapping[str, Estimate | float]) -> pd.DataFrame:
    """Return a row per quantity: `quantity`, `value` (the mean), `deviation` (0 if exact) and `n` draws."""
    estimates = {name: estimate_of(quantity) for name, quantity in quantities.items()}
    rows = [(name, float(estimate.mean), estimate.deviation, estimate.n) for name, estimate in estimates.items()]
    return pd.DataFrame(rows, columns=["quantity", "value", "deviation", "n"])
