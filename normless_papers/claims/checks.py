"""The vocabulary of checks, each of which takes a claim and the numbers that decide it, and the verdicts on them.

The vocabulary of checks: each takes a claim and the numbers that decide it.

`larger`, `within`, `close`, `in_every` and `check` take the claim first. `exceeds`, `lies_within`, `equals`, `in_all`
and `decided` are the same without it, for claims beside their tests: `{"A is larger than B.": exceeds(a, b)}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, get_args

import numpy as np

from normless_papers.claims.estimates import Quantity, above_zero, difference, estimate_of, half_width

Verdict = Literal["holds", "fails", "inconclusive"]

# What checks rest on: a formula that our code is compared with; measured networks or random matrices; training runs.
Basis = Literal["formula", "measurement", "training"]
BASES: tuple[Basis, ...] = get_args(Basis)

# What a check is about: the shape of the result (an ordering, a direction), a number that the paper prints, what the
# text says beyond the artefact's own claim or domain, or a premise without which nothing contradicts the paper.
CheckAspect = Literal["shape", "number", "beyond", "premise"]


@dataclass(frozen=True)
class Claim:
    """A claim as a sentence with its bound, the verdict on it, and the numbers that decide it (NaN: not measured)."""

    claim: str
    verdict: Verdict
    numbers: Mapping[str, float]
    of: CheckAspect = "shape"


def check(claim: str, /, holds: bool | np.bool_ | None, **numbers: float) -> Claim:
    """Return a check that the caller decided; `holds` is None if the numbers cannot decide it."""
    verdict: Verdict = "inconclusive" if holds is None else "holds" if holds else "fails"
    return Claim(claim, verdict, {name: float(value) for name, value in numbers.items()})


def close(claim: str, measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Claim:
    """Check |measured - expected| ≤ max(absolute, relative·|expected|); numbers that are not finite fail.

    Raises:
        ValueError: neither tolerance is above 0.
    """
    if relative <= 0 and absolute <= 0:
        raise ValueError(f"The check {claim!r} needs a tolerance above 0: relative or absolute.")
    tolerance = max(absolute, relative * abs(expected))
    holds = abs(measured - expected) <= tolerance
    return check(claim, holds, measured=measured, expected=expected, tolerance=tolerance)


def larger(claim: str, first: Quantity, second: Quantity, *, by: float = 0.0) -> Claim:
    """Check first - second > by at 95 % by Student's t: paired for the same seeds, else Welch's.

    With h the half width of the 95 % interval (see `half_width`), the claim holds if first - second - by > h, fails
    if it is below -h, and is inconclusive between. An exact quantity adds no error. The error of a single run is
    unknown: `Estimate(mean, math.nan)` is always inconclusive.

    The numbers of the check are both means, by the names of the estimates if these differ, else as `first` and
    `second`; `needed_difference` (`by`), `standard_error`, `half_width` and `pairs` (0 if not paired).
    """
    left, right = estimate_of(first), estimate_of(second)
    gap = difference(left, right)
    paired = len(gap.by_seed) > 1
    sample = [gap] if paired else [left, right]
    names = (left.name, right.name) if len({left.name, right.name, ""}) == 3 else ("first", "second")
    numbers = {
        names[0]: left.mean,
        names[1]: right.mean,
        "needed_difference": by,
        "standard_error": math.hypot(*(estimate.standard_error for estimate in sample)),
        "half_width": half_width(*sample),
        "pairs": gap.n if paired else 0,
    }
    return check(claim, above_zero(left.mean - right.mean - by, *sample), **numbers)


def within(claim: str, quantity: Quantity, low: float, high: float) -> Claim:
    """Check low ≤ mean ≤ high by Student's t at 95 % against the nearer bound; inconclusive if that cannot decide.

    An exact quantity is always decided, one of unknown error (NaN) never.

    Raises:
        ValueError: low is above high.
    """
    if low > high:
        raise ValueError(f"The range of the claim {claim!r} is from {low} to {high}: its ends are reversed.")
    estimate = estimate_of(quantity)
    numbers = {"measured": estimate.mean, "low": low, "high": high, "standard_error": estimate.standard_error}
    inside = min(estimate.mean - low, high - estimate.mean)
    # The bounds of an exact quantity are within the range.
    holds = True if inside == estimate.deviation == 0 else above_zero(inside, estimate)
    return check(claim, holds, **numbers, half_width=half_width(estimate))


def equivalent(claim: str, first: Quantity, second: Quantity, margin: float) -> Claim:
    """Check |first - second| < margin by two one-sided tests of `larger`, so that more noise never helps.

    Both differences must exceed -margin at 97.5 % for the claim to hold; it fails if one of them is below -margin,
    and is inconclusive between.
    """
    sides = [larger(claim, *pair, by=-margin) for pair in ((first, second), (second, first))]
    numbers = {name: value for name, value in sides[0].numbers.items() if name != "needed_difference"}
    verdicts = {side.verdict for side in sides}
    holds = False if "fails" in verdicts else True if verdicts == {"holds"} else None
    return check(claim, holds, **numbers, margin=margin)


def near(claim: str, quantity: Quantity, expected: float, tolerance: float) -> Claim:
    """Check `within` expected ± tolerance."""
    return within(claim, quantity, expected - tolerance, expected + tolerance)


def below(claim: str, largest: float, bound: float, **numbers: float) -> Claim:
    """Check largest < bound of an exact number, such as a deviation; NaN fails."""
    return check(claim, largest < bound, largest=largest, bound=bound, **numbers)


def in_every(claim: str, /, draws: Iterable[bool], **numbers: float) -> Claim:
    """Check whether every draw is true; fails if at most half of them are.

    Raises:
        ValueError: there are no draws.
    """
    flags = [bool(draw) for draw in draws]
    if not flags:
        raise ValueError(f"The claim {claim!r} is about every draw, and there is none.")
    share = sum(flags) / len(flags)
    holds = True if share == 1 else False if share <= 0.5 else None
    return check(claim, holds, share_of_draws=share, draws=len(flags), **numbers)


def not_asked(undecided: Claim, why: str) -> Claim:
    """Return the check as inconclusive, with the reason."""
    return replace(undecided, claim=f"{undecided.claim} Not asked, since {why}.", verdict="inconclusive")


def at_scale(printed: Claim, reduction: str, of: CheckAspect = "number") -> Claim:
    """Return a check that only the paper's own scale can decide: inconclusive unless the reduction is empty.

    Args:
        reduction: how the set-up is smaller than the paper's, as a sentence.
        of: a printed number, or an ordering (`shape`) that short trainings or small networks need not have.
    """
    printed = replace(printed, of=of)
    claim = f"{printed.claim} Not asked of a smaller set-up: {reduction}"
    return replace(printed, claim=claim, verdict="inconclusive") if reduction else printed


def beyond(further: Claim) -> Claim:
    """Return the check as one of what the text says beyond the artefact's own claim; it has a verdict of its own."""
    return replace(further, of="beyond")


def premise(needed: Claim) -> Claim:
    """Return the check as a premise: unless it holds, no failed check contradicts the paper."""
    return replace(needed, of="premise")


def qualified(checks: Iterable[Claim], reduction: str) -> tuple[Claim, ...]:
    """Return the checks, with the reduction added to the claims of those that fail."""
    return tuple(
        replace(own, claim=f"{own.claim} Smaller than the paper’s set-up: {reduction}")
        if reduction and own.verdict == "fails"
        else own
        for own in checks
    )


Numbers = ParamSpec("Numbers")

Test: TypeAlias = Callable[[str], Claim]
"""A function from a claim to its check."""

Tests: TypeAlias = Mapping[str, Test]
"""Tests by their claims."""


def _without_claim(check_of: Callable[Concatenate[str, Numbers], Claim]) -> Callable[Numbers, Test]:
    return lambda *args, **kwargs: lambda claim: check_of(claim, *args, **kwargs)


exceeds = _without_claim(larger)
lies_within = _without_claim(within)
equals = _without_claim(close)
in_all = _without_claim(in_every)
decided = _without_claim(check)


def asked_at_scale(test: Test, reduction: str) -> Test:
    """Return a test of the paper's own numbers; see `at_scale`."""
    return lambda claim: at_scale(test(claim), reduction)


def stated(tests: Tests) -> list[Claim]:
    """Return the check of every claim by its test."""
    return [test(claim) for claim, test in tests.items()]


def checks_by(function: Callable[[Any], Sequence[Claim] | Tests]) -> Callable[[Any], Sequence[Claim]]:
    """Return a function from facts to checks for one that returns checks or tests."""

    def checks(facts: Any) -> Sequence[Claim]:
        result = function(facts)
        return stated(result) if isinstance(result, Mapping) else result

    return checks


Conclusion = Literal["reproduced", "implemented", "contradicted", "not seen here"]
CONCLUSIONS: tuple[Conclusion, ...] = get_args(Conclusion)


def conclusion_of(
    checks: Sequence[Claim], aspect: CheckAspect, *, decisive: bool, basis: Basis | Literal[""] = ""
) -> Conclusion | None:
    """Return the verdict by the checks of an aspect, or None if there are none.

    `reproduced` if all of them hold, or `implemented` if they compare our code with a formula, which no experiment
    can refute; `contradicted` if one of them fails in a set-up that can contradict the paper (see `obstacle_of`),
    else `not seen here`.
    """
    verdicts = {check.verdict for check in checks if check.of == aspect}
    if verdicts == {"holds"}:
        return "implemented" if basis == "formula" else "reproduced"
    return ("contradicted" if "fails" in verdicts and decisive else "not seen here") if verdicts else None


def obstacle_of(checks: Sequence[Claim], basis: Basis | Literal[""], *, of_same_kind: bool) -> str:
    """Return why failed checks do not contradict the paper, as a clause; empty if they do.

    They contradict it if it is a formula, or if the paper's own phenomenon is present: measurements must be of the
    paper's kind of data and network. Training runs must also have at least one premise, such as a control that
    reached what it reaches when trained on, and all premises must hold.
    """
    if basis == "formula":
        return ""
    if not of_same_kind:
        return "data or network are of another kind than the paper's"
    premises = {check.verdict for check in checks if check.of == "premise"}
    if basis == "training" and not premises:
        return "it is not known what the control reaches when trained on"
    return "" if premises <= {"holds"} else "the control did not reach what it reaches when trained on"
