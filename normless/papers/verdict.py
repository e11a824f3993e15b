"""Claims as executable checks: what is said, the numbers it rests on, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "fails", "inconclusive"]


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
    """

    mean: float
    deviation: float = 0.0
    n: int = 1


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
    """first - second > by, where the difference is told from `by` by the standard errors of both.

    With z = (first - second - by) / √(s₁²/n₁ + s₂²/n₂), the claim holds for z > 2, fails for z < -2 and is
    inconclusive between. Of single runs the error is unknown: the claim is then inconclusive unless both are
    exact (n = 1 with deviation 0 counts as exact), so give single training runs as `Estimate(mean, math.nan)`.
    """
    error = math.sqrt(first.deviation**2 / first.n + second.deviation**2 / second.n)
    gap = first.mean - second.mean - by
    numbers = {"first": first.mean, "second": second.mean, "by": by, "standard_error": error}
    if math.isnan(gap) or math.isnan(error):
        return check(claim, None, **numbers)
    if abs(gap) <= 2 * error:
        return check(claim, None, **numbers)
    return check(claim, gap > 0, **numbers)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Fails if any check fails, else is inconclusive if any is or there is none, else holds."""
    verdicts = [one.verdict for one in checks]
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts and "inconclusive" not in verdicts else "inconclusive"
