"""Claims as checks: estimates over replicates, comparisons of them at 95 %, and the verdict on a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import t as student

Verdict = Literal["holds", "fails", "inconclusive"]

# What checks rest on: a formula that our code is compared with; measured networks or random matrices; training runs.
Basis = Literal["formula", "measurement", "training"]
BASES: tuple[Basis, ...] = get_args(Basis)

# Top-1 accuracy of ResNet-50 on ImageNet over five seeds: 23.60 ± 0.12 % error (Goyal et al. 2017, table 1).
IMAGENET_DEVIATION = 0.12


@dataclass(frozen=True)
class Check:
    """A claim, a sentence with the bound in it, its verdict, and the numbers of that; NaN if nothing was measured."""

    claim: str
    verdict: Verdict
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation and number of replicates; an exact quantity is `Estimate(value)`.

    The deviation of a single replicate is NaN. Estimates with the same seeds in `by_seed` are compared seed by seed;
    `name` is for the numbers of a check.
    """

    mean: float
    deviation: float = 0.0
    n: int = 1
    by_seed: Mapping[int, float] = field(default_factory=dict)
    name: str = field(default="", compare=False)

    def scaled(self, factor: float, offset: float = 0.0) -> Estimate:
        """The estimate of factor · x + offset."""
        return replace(
            self,
            mean=factor * self.mean + offset,
            deviation=abs(factor) * self.deviation,
            by_seed={seed: factor * value + offset for seed, value in self.by_seed.items()},
            name="",
        )


UNKNOWN = Estimate(math.nan, math.nan)

Quantity: TypeAlias = "Estimate | float | pd.Series[Any]"
"""An estimate, an exact number, or a number per draw."""


def estimate_of(quantity: Quantity) -> Estimate:
    """The estimate of a quantity."""
    if isinstance(quantity, pd.Series):
        return replicates(quantity)
    return quantity if isinstance(quantity, Estimate) else Estimate(quantity)


def check(claim: str, /, holds: bool | np.bool_ | None, **numbers: float) -> Check:
    """A check decided by the caller; `holds` None says that the numbers cannot decide it."""
    verdict: Verdict = "inconclusive" if holds is None else "holds" if holds else "fails"
    return Check(claim, verdict, {name: float(value) for name, value in numbers.items()})


def close(claim: str, measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """|measured - expected| ≤ max(absolute, relative·|expected|), of which one must be above 0, else ValueError.

    Numbers that are not finite fail.
    """
    if relative <= 0 and absolute <= 0:
        raise ValueError(f"The check {claim!r} needs a tolerance above 0: relative or absolute.")
    tolerance = max(absolute, relative * abs(expected))
    holds = abs(measured - expected) <= tolerance
    return check(claim, holds, measured=measured, expected=expected, tolerance=tolerance)


def larger(claim: str, first: Quantity, second: Quantity, *, by: float = 0.0) -> Check:
    """first - second > by, decided at 95 % by Student's t.

    Replicates with the same seeds are paired: with d the differences of the n pairs, s their deviation and
    e² = s²/n, the claim holds where mean(d) - by > q·e, fails where it is below -q·e, and is inconclusive between; q
    is the 97.5 % quantile of Student's t with n - 1 degrees of freedom. Others are compared by Welch's test:
    e² = s₁²/n₁ + s₂²/n₂, and q has the degrees of freedom of Welch and Satterthwaite. An exact quantity adds no
    error. The error of a single run is unknown: give it as `Estimate(mean, math.nan)`, which is inconclusive.

    The numbers of the check are both means, by the names of the estimates if they have different ones, else as
    `first` and `second`; `needed_difference` (`by`), `standard_error` (e), `half_width` of the interval (q·e) and
    `pairs` (0 if there are none).
    """
    one, other = estimate_of(first), estimate_of(second)
    gap = difference(one, other)
    paired = len(gap.by_seed) > 1
    squared, counts = squared_errors(gap) if paired else squared_errors(one, other)
    names = (one.name, other.name) if len({one.name, other.name, ""}) == 3 else ("first", "second")
    errors = {"standard_error": math.sqrt(sum(squared)), "half_width": half_width(squared, counts)}
    numbers = {"needed_difference": by, **errors, "pairs": gap.n if paired else 0}
    holds = above_zero(one.mean - other.mean - by, squared, counts)
    return check(claim, holds, **dict(zip(names, (one.mean, other.mean), strict=True)), **numbers)


def squared_errors(*estimates: Estimate) -> tuple[list[float], list[int]]:
    """The squared standard errors s²/n of some estimates, and their n."""
    return [one.deviation**2 / one.n for one in estimates], [one.n for one in estimates]


def within(claim: str, quantity: Quantity, low: float, high: float) -> Check:
    """low ≤ mean ≤ high: Student's t at 95 % against the nearer bound; inconclusive where that cannot decide.

    An exact quantity is always decided, one of unknown error (NaN) never is. ValueError where low is above high.
    """
    if low > high:
        raise ValueError(f"The range of the claim {claim!r} is from {low} to {high}, the wrong way round.")
    estimate = estimate_of(quantity)
    error = estimate.deviation / math.sqrt(estimate.n)
    numbers = {"measured": estimate.mean, "low": low, "high": high, "standard_error": error}
    numbers["half_width"] = half_width([error**2], [estimate.n])
    inside = min(estimate.mean - low, high - estimate.mean)
    # A bound itself is within the range, where nothing is uncertain.
    holds = True if inside == error == 0 else above_zero(inside, [error**2], [estimate.n])
    return check(claim, holds, **numbers)


def near(claim: str, quantity: Quantity, expected: float, tolerance: float) -> Check:
    """`within` of expected ± tolerance."""
    return within(claim, quantity, expected - tolerance, expected + tolerance)


def below(claim: str, largest: float, bound: float, **numbers: float) -> Check:
    """largest < bound of an exact number, such as a deviation; fails where it is not a number."""
    return check(claim, largest < bound, largest=largest, bound=bound, **numbers)


def in_every(claim: str, /, draws: Iterable[bool], **numbers: float) -> Check:
    """Whether something holds in every draw; fails if it holds in at most half of them; ValueError for no draws."""
    flags = [bool(draw) for draw in draws]
    if not flags:
        raise ValueError(f"The claim {claim!r} is about every draw, and there is none.")
    share = sum(flags) / len(flags)
    holds = True if share == 1 else False if share <= 0.5 else None
    return check(claim, holds, share_of_draws=share, draws=len(flags), **numbers)


def not_asked(one: Check, why: str) -> Check:
    """A check that the runs cannot decide, and why: undecided."""
    return replace(one, claim=f"{one.claim} Not asked, since {why}.", verdict="inconclusive")


def at_scale(one: Check, reduction: str) -> Check:
    """A check of the paper's very numbers: inconclusive where a reduction, given as a sentence, is not empty."""
    if not reduction:
        return one
    return replace(one, claim=f"{one.claim} Not asked of a smaller set-up: {reduction}", verdict="inconclusive")


def qualified(checks: Iterable[Check], reduction: str) -> tuple[Check, ...]:
    """The checks, with the reduction added to the claims of those that fail."""
    return tuple(
        replace(one, claim=f"{one.claim} Smaller than the paper’s set-up: {reduction}")
        if reduction and one.verdict == "fails"
        else one
        for one in checks
    )


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Fails if any check fails, else is inconclusive if any is or there is none, else holds."""
    verdicts = [one.verdict for one in checks]
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts and "inconclusive" not in verdicts else "inconclusive"


def above_zero(gap: float, squared: Sequence[float], counts: Sequence[int]) -> bool | None:
    """Whether a mean or difference of means is above 0 at 95 %, by `squared_errors`; None if undecided or NaN."""
    needed = half_width(squared, counts)
    return None if math.isnan(gap) or math.isnan(needed) or abs(gap) <= needed else gap > 0


def half_width(squared: Sequence[float], counts: Sequence[int]) -> float:
    """Half the 95 % interval of a mean or difference of means, q·e as in `larger`, by `squared_errors`."""
    terms = sum(error**2 / (n - 1) for error, n in zip(squared, counts, strict=True) if error > 0 and n > 1)
    # Without replicates, or where the errors are too small to be squared, as with infinitely many.
    freedom = sum(squared) ** 2 / terms if terms else math.inf
    return float(student.ppf(0.975, freedom)) * math.sqrt(sum(squared))


def over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """Mean and sample standard deviation over independent draws, NaN for a single one; ValueError for no draws."""
    numbers = np.asarray(list(values), dtype=float)
    if not len(numbers):
        raise ValueError("An estimate needs at least one draw, got none.")
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return Estimate(float(numbers.mean()), deviation, len(numbers))


def decades_over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """`over_draws` of log₁₀, of quantities that vary by orders of magnitude; 0 gives -∞, less than 0 NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return over_draws(np.log10(np.asarray(list(values), dtype=float)))


def replicates(values: pd.Series, best: int | None = None, *, minimized: bool = False, name: str = "") -> Estimate:
    """Mean and deviation of the best replicates, or of all and then by seed; `values` are indexed by seed."""
    numbers, sign = values.to_numpy(dtype=float), 1 if minimized else -1
    chosen = sign * np.sort(sign * numbers)[: best or len(numbers)]
    estimate = replace(over_draws(chosen), name=name)
    if len(chosen) < len(numbers):
        return estimate
    by_seed = {int(seed): float(value) for seed, value in zip(values.index, numbers, strict=True)}
    return replace(estimate, by_seed=by_seed)


def single_run(value: float) -> Estimate:
    """A single run of ResNet-50 on ImageNet, in percent; two differ where 1.96 · √2 · 0.12 = 0.33 points apart."""
    return Estimate(value, IMAGENET_DEVIATION, 1)


def combined(terms: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Σ w_i x_i of weights w_i and estimates x_i, seed by seed if all have the same seeds, else as independent."""
    seeds = [sorted(one.by_seed) for _, one in terms]
    if seeds[0] and all(one == seeds[0] for one in seeds):
        sums = {seed: math.fsum(weight * one.by_seed[seed] for weight, one in terms) for seed in seeds[0]}
        return replicates(pd.Series(sums, dtype=float))
    mean = math.fsum(weight * one.mean for weight, one in terms)
    deviation = math.hypot(*(weight * one.deviation for weight, one in terms))
    return Estimate(mean, deviation, min(one.n for _, one in terms))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """first - second, see `combined`."""
    return combined([(1.0, first), (-1.0, second)])


def quantity_table(quantities: Mapping[str, Estimate | float]) -> pd.DataFrame:
    """A row per quantity: `quantity`, `value` (the mean), `deviation` over draws (0 if exact) and `n` draws."""
    estimates = {name: estimate_of(one) for name, one in quantities.items()}
    rows = [(name, float(one.mean), one.deviation, one.n) for name, one in estimates.items()]
    return pd.DataFrame(rows, columns=["quantity", "value", "deviation", "n"])
