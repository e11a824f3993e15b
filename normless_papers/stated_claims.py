"""Claims beside their tests: `{"A is larger than B.": exceeds(a, b)}`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from normless_papers.claims import Check, Estimate, at_scale, check, close, in_every, larger, replicates, within

Test: TypeAlias = Callable[[str], Check]
"""From a claim to its check."""

Tests: TypeAlias = Mapping[str, Test]
"""By the claims."""

Quantity: TypeAlias = "Estimate | float | pd.Series[Any]"
"""An estimate, an exact number, or a number per draw."""


def stated(tests: Tests) -> list[Check]:
    """The check of every claim, by its test."""
    return [test(claim) for claim, test in tests.items()]


def checks_by(function: Callable[[Any], Sequence[Check] | Tests]) -> Callable[[Any], Sequence[Check]]:
    """A function of facts to checks, for one to checks or to tests."""

    def checks(facts: Any) -> Sequence[Check]:
        result = function(facts)
        return stated(result) if isinstance(result, Mapping) else result

    return checks


def exceeds(first: Quantity, second: Quantity, *, by: float = 0.0) -> Test:
    """`larger`: first - second > by."""
    return partial(larger, first=_estimate(first), second=_estimate(second), by=by)


def lies_within(quantity: Quantity, low: float, high: float) -> Test:
    """`within`: low ≤ mean ≤ high."""
    return partial(within, estimate=_estimate(quantity), low=low, high=high)


def equals(measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Test:
    """`close`: |measured - expected| ≤ max(absolute, relative·|expected|)."""
    return partial(close, measured=measured, expected=expected, relative=relative, absolute=absolute)


def in_all(draws: Iterable[bool], **numbers: float) -> Test:
    """`in_every`: it holds in every draw."""
    return lambda claim: in_every(claim, draws, **numbers)


def decided(holds: bool | np.bool_ | None, **numbers: float) -> Test:
    """`check`: decided by the caller, None if the numbers cannot decide it."""
    return lambda claim: check(claim, None if holds is None else bool(holds), **numbers)


def asked_at_scale(test: Test, reduction: str) -> Test:
    """`at_scale`: the test is of the paper's very numbers."""
    return lambda claim: at_scale(test(claim), reduction)


def _estimate(quantity: Quantity) -> Estimate:
    if isinstance(quantity, pd.Series):
        return replicates(quantity)
    return quantity if isinstance(quantity, Estimate) else Estimate(quantity)
