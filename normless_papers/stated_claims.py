"""Claims beside their tests: `{"A is larger than B.": exceeds(a, b)}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias

from normless_papers.claims import Check, at_scale, check, close, in_every, larger, within

Numbers = ParamSpec("Numbers")

Test: TypeAlias = Callable[[str], Check]
"""From a claim to its check."""

Tests: TypeAlias = Mapping[str, Test]
"""By the claims."""


def stated(tests: Tests) -> list[Check]:
    """The check of every claim, by its test."""
    return [test(claim) for claim, test in tests.items()]


def checks_by(function: Callable[[Any], Sequence[Check] | Tests]) -> Callable[[Any], Sequence[Check]]:
    """A function of facts to checks, for one to checks or to tests."""

    def checks(facts: Any) -> Sequence[Check]:
        result = function(facts)
        return stated(result) if isinstance(result, Mapping) else result

    return checks


def _test_by(check_of: Callable[Concatenate[str, Numbers], Check]) -> Callable[Numbers, Test]:
    """The function of numbers to a test, for one of a claim and numbers to a check."""
    return lambda *args, **kwargs: lambda claim: check_of(claim, *args, **kwargs)


exceeds = _test_by(larger)
lies_within = _test_by(within)
equals = _test_by(close)
in_all = _test_by(in_every)
decided = _test_by(check)


def asked_at_scale(test: Test, reduction: str) -> Test:
    """`at_scale`: the test is of the paper's very numbers."""
    return lambda claim: at_scale(test(claim), reduction)
