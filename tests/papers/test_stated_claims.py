"""Claims beside their tests are the checks that the functions of `normless_papers.claims` make of them."""

from __future__ import annotations

import pandas as pd

from normless_papers.claims import (
    Estimate,
    asked_at_scale,
    at_scale,
    check,
    close,
    decided,
    equals,
    exceeds,
    in_all,
    in_every,
    larger,
    lies_within,
    replicates,
    stated,
    within,
)

DRAWS = pd.Series([1.0, 2.0, 4.0], index=[0, 1, 2])
TESTS = {
    "a > b": exceeds(DRAWS, 0.5, by=0.1),
    "a in range": lies_within(DRAWS, 0.0, 1.0),
    "a = b": equals(1.0, 1.1, relative=0.2),
    "in all": in_all([True, False], size=3.0),
    "decided": decided(DRAWS.min() > 0, smallest=1.0),
    "undecided": decided(None),
    "published": asked_at_scale(exceeds(2.0, 1.0), "Fewer images."),
}


def test_each_claim_has_the_check_of_its_test() -> None:
    assert stated(TESTS) == [
        larger("a > b", replicates(DRAWS), Estimate(0.5), by=0.1),
        within("a in range", replicates(DRAWS), 0.0, 1.0),
        close("a = b", 1.0, 1.1, relative=0.2),
        in_every("in all", [True, False], size=3.0),
        check("decided", True, smallest=1.0),
        check("undecided", None),
        at_scale(larger("published", Estimate(2.0), Estimate(1.0)), "Fewer images."),
    ]
