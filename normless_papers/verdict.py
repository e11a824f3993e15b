"""Claims as executable checks: what is said, the numbers it rests on, and whether it holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from scipy.stats import t as student

Verdict = Literal["holds", "fails", "inconclusive"]

# What checks rest on: our code computed beside the paper's formula; networks or random matrices that were measured;
# training runs.
Basis = Literal["formula", "measurement", "training"]
BASES: tuple[Basis, ...] = get_args(Basis)


@dataclass(frozen=True)
class Check:
    """One claim that was checked.

    Attributes:
        claim: what should be so, in a sentence with the bound in it.
        verdict: whether it is.
        numbers: what that rests on, by name; NaN where there was nothing to measure.
    """

    claim: str
    verdict: Verdict
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over replicates, their sample standard deviation (0 for one), and their number.

    An exact quantity is `Estimate(value)`.

    Attributes:
        mean: of the replicates.
        deviation: their sample standard deviation; NaN of a single one.
        n: how many there are.
        by_seed: each replicate's number by its seed; empty where they have none. Estimates with the same seeds are
            compared seed by seed.
    """

    mean: float
    deviation: float = 0.0
    n: int = 1
    by_seed: Mapping[int, float] = field(default_factory=dict)

    def scaled(self, factor: float, offset: float = 0.0) -> Estimate:
        """The estimate of factor · x + offset."""
        return replace(
            self,
            mean=factor * self.mean + offset,
            deviation=abs(factor) * self.deviation,
            by_seed={seed: factor * value + offset for seed, value in self.by_seed.items()},
        )


def check(claim: str, holds: bool | None, **numbers: float) -> Check:
    """A check decided by the caller; `holds` None says that the numbers cannot decide it."""
    verdict: Verdict = "inconclusive" if holds is None else "holds" if holds else "fails"
    return Check(claim, verdict, {name: float(value) for name, value in numbers.items()})


def close(claim: str, measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """|measured - expected| ≤ max(absolute, relative·|expected|); not finite numbers fail.

    Raises:
        ValueError: no tolerance is given.
    """
    if relative <= 0 and absolute <= 0:
        raise ValueError(f"The check {claim!r} needs a tolerance above 0: relative or absolute.")
    tolerance = max(absolute, relative * abs(expected))
    return check(
        claim, abs(measured - expected) <= tolerance, measured=measured, expected=expected, tolerance=tolerance
    )


def larger(claim: str, first: Estimate, second: Estimate, *, by: float = 0.0) -> Check:
    """first - second > by, decided at 95 % by Student's t.

    Replicates with the same seeds are paired: with d the differences of the n pairs, s their deviation and
    e² = s²/n, the claim holds where mean(d) - by > q·e, fails where it is below -q·e, and is inconclusive between; q
    is the 97.5 % quantile of Student's t with n - 1 degrees of freedom. Others are compared by Welch's test:
    e² = s₁²/n₁ + s₂²/n₂, and q has the degrees of freedom of Welch and Satterthwaite. An exact quantity adds no
    error. Of single runs the error is unknown, so give them as `Estimate(mean, math.nan)`, which is inconclusive.
    The check's numbers are claimed_larger, claimed_smaller, by, standard_error (e) and pairs (0 if there are none).
    """
    seeds = sorted(first.by_seed)
    paired = len(seeds) > 1 and seeds == sorted(second.by_seed)
    if paired:
        differences = [first.by_seed[seed] - second.by_seed[seed] for seed in seeds]
        squared, counts = [statistics.variance(differences) / len(seeds)], [len(seeds)]
    else:
        squared = [first.deviation**2 / first.n, second.deviation**2 / second.n]
        counts = [first.n, second.n]
    return check(
        claim,
        above_zero(first.mean - second.mean - by, squared, counts),
        claimed_larger=first.mean,
        claimed_smaller=second.mean,
        by=by,
        standard_error=math.sqrt(sum(squared)),
        pairs=len(seeds) if paired else 0,
    )


def at_scale(one: Check, reduction: str) -> Check:
    """A check of the paper's very numbers, which only the paper's own data, network and length can decide.

    Args:
        one: the check.
        reduction: what is less than the paper's, as a sentence; empty if nothing is.

    Returns:
        The check as it is where nothing is reduced, else inconclusive with its numbers and the reason.
    """
    if not reduction:
        return one
    return replace(one, claim=f"{one.claim} Not asked of a smaller set-up: {reduction}", verdict="inconclusive")


def above_zero(gap: float, squared_errors: Sequence[float], counts: Sequence[int]) -> bool | None:
    """Whether a mean, or a difference of means, is above 0; None where it cannot be told from 0 at 95 %, or is NaN.

    Args:
        gap: the mean or difference.
        squared_errors: deviation²/n of each mean.
        counts: n of each.
    """
    error = math.sqrt(sum(squared_errors))
    if math.isnan(gap) or math.isnan(error) or abs(gap) <= _quantile(squared_errors, counts) * error:
        return None
    return gap > 0


def _quantile(squared_errors: Sequence[float], counts: Sequence[int]) -> float:
    """How many standard errors it must be away from 0."""
    terms = [error**2 / (n - 1) for error, n in zip(squared_errors, counts, strict=True) if error > 0 and n > 1]
    if not terms or sum(terms) == 0:
        # Without replicates, or where the errors are too small to be squared, what very many would have.
        return float(student.ppf(0.975, math.inf))
    return float(student.ppf(0.975, sum(squared_errors) ** 2 / sum(terms)))


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Fails if any check fails, else is inconclusive if any is or there is none, else holds."""
    verdicts = [one.verdict for one in checks]
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts and "inconclusive" not in verdicts else "inconclusive"
