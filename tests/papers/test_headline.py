"""The headline claims: each names checks that exist, and is decided by these alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import nan

import pandas as pd
import pytest
from papers_helpers import result_of
from papers_runs import End, made_up

from normless_papers.artefact import Budget, artefact_of
from normless_papers.claims import Check, Estimate, Verdict, larger, replicates
from normless_papers.claims.training import opposite, trains
from normless_papers.distance import Distance
from normless_papers.pages.headline import (
    Decided,
    Headline,
    decide,
    headline_artefacts,
    headlines,
)
from normless_papers.pages.wording import compared, effect_of, left_of
from normless_papers.published import published

# Measured on networks, not decided by runs that can be made up: the committed file has their checks.
MEASURED = {"understanding-bn/table-1", "gamma/figure-5"}
CLAIM = Headline("It trains.", "94 %", {"fixup/table-1": ["Fixup trains", "Batch norm has"]}, "it does not")
PRESENT = Check("The control is at its plateau.", "holds", {"control": 93.0}, "premise")
AS_PRINTED = Distance()
OTHER = Distance(data="digits instead of cifar10", of_same_kind=False)
ABSENT = replace(PRESENT, verdict="inconclusive")


def check(verdict: Verdict, claim: str = "Fixup trains.") -> Check:
    return Check(claim, verdict, {"first": 3.0, "second": 1.0, "needed_difference": 0.0, "half_width": 0.5})


def decided(
    *verdicts: Verdict, missing: Sequence[str] = (), distance: Distance = AS_PRINTED, premise: Check = PRESENT
) -> Decided:
    checks = list(map(check, verdicts))
    results = [result_of("fixup/table-1", "gpu", checks=(*checks, premise), distance=distance)] if verdicts else []
    return Decided(CLAIM, results, checks, missing)


def test_there_are_fifteen_of_all_five_papers() -> None:
    assert len(headlines()) == 15
    assert {headline.paper for headline in headlines()} == {entry.paper for entry in published().values()}
    assert set(headline_artefacts()) <= set(published())


@pytest.mark.parametrize("name", [name for name in headline_artefacts() if name not in MEASURED])
@pytest.mark.parametrize("budget", ["small", pytest.param("gpu", marks=pytest.mark.slow)])
def test_every_named_check_exists(name: str, budget: Budget) -> None:
    found = artefact_of(name)
    context, _ = made_up(lambda *_: End(90.0, bleu=30.0), budget)
    checks = found.checks_of(found.function(context, **found.settings[context.budget]))
    for headline in headlines():
        for start in headline.checks.get(name, ()):
            named = [check for check in checks if fnmatchcase(check.claim, f"{start}*")]
            assert named, start
            # One that is only asked of the paper's set-up could never be decided.
            assert not any("Not asked of a smaller set-up" in check.claim for check in named), start


@pytest.mark.parametrize(
    ("verdicts", "missing", "outcome"),
    [
        (("holds", "holds"), (), "reproduced"),
        (("holds", "fails", "inconclusive"), ("fixup/figure-3",), "contradicted"),
        (("holds", "inconclusive"), (), "not seen here"),
        (("holds",), ("fixup/figure-3",), "not seen here"),
        ((), ("fixup/table-1",), "not run"),
    ],
)
def test_a_claim_is_contradicted_by_one_check_and_reproduced_by_all(
    verdicts: tuple[Verdict, ...], missing: tuple[str, ...], outcome: str
) -> None:
    assert decided(*verdicts, missing=missing).outcome == outcome


@pytest.mark.parametrize("what", ["data", "network"])
def test_a_demonstration_contradicts_nothing(what: str) -> None:
    distance = Distance(**{what: "smaller"}, of_same_kind=False)  # type: ignore[arg-type]
    failed, held = decided("fails", distance=distance), decided("holds", distance=distance)
    assert (failed.outcome, failed.demonstrates) == ("not seen here", True)
    assert (held.outcome, held.demonstrates) == ("reproduced", True)
    assert "smaller" in failed.distance


def test_without_the_phenomenon_in_the_control_nothing_is_contradicted() -> None:
    assert decided("fails").outcome == "contradicted"
    assert decided("fails", premise=ABSENT).outcome == "not seen here"
    assert decided("fails", distance=Distance(length="30 epochs instead of 164")).outcome == "contradicted"


def test_what_a_claim_leaves_out_is_counted() -> None:
    left = Check("Fixup has a 7 % lower error.", "fails", {"value": 1.0})
    row = decided("holds")
    row = replace(row, results=[replace(row.results[0], checks=(*row.results[0].checks, left))])
    assert row.outcome == "reproduced"
    assert row.whole == "fixup/table-1: contradicted"
    assert "1 further" in row.why
    assert "1 fail" in row.why


def test_only_the_named_checks_count_at_the_largest_budget() -> None:
    claim = "Fixup's test error ends above that of BatchNorm."
    other = Check("It is fast. Not asked of a smaller set-up: digits.", "inconclusive", {})
    small = result_of("fixup/figure-5", "small", checks=(check("fails", claim),))
    gpu = result_of("fixup/figure-5", "gpu", checks=(other, check("holds", claim)))
    there = {("fixup/figure-5", "small"): small, ("fixup/figure-5", "gpu"): gpu}
    (headline,) = [headline for headline in decide(lambda *key: there.get(key)) if headline.results]
    assert [check.verdict for check in headline.checks] == ["holds"]
    assert (headline.results, headline.missing) == ([gpu], ["zeroinit/table-5"])
    assert headline.outcome == "not seen here"
    assert headline.command == "normless reproduce zeroinit/table-5 fixup/figure-5 --budget gpu"


def test_an_effect_has_its_interval() -> None:
    spread = replicates(pd.Series({0: 1.0, 1: 2.0, 2: 3.0}))
    pairs = larger("It is larger.", spread.scaled(2), spread)
    # Differences 1, 2, 3: mean 2, standard error 1/√3, and t's 97.5 % quantile with 2 degrees of freedom is 4.3027.
    assert pairs.numbers["half_width"] == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert effect_of(pairs) == "first 4 vs second 2, needs first > second: +2 ± 2.5"
    shares = Check("In every draw.", "holds", {"share_of_draws": 0.75, "draws": 4.0})
    untrained = Check("It is above.", "inconclusive", {"control_scheme": 4.0, "other": nan, "needed_difference": 0.0})
    assert effect_of(untrained) == "control scheme 4 vs other unknown, needs control scheme > other"
    assert effect_of(shares) == "in 75 % of 4 draws, needs all"
    earlier = Check("It is within.", "holds", {"measured": 0.3, "low": 0.0, "high": 1.0, "standard_error": 0.1})
    assert effect_of(earlier) == "measured 0.3, standard error 0.1, needs 0 to 1"


def test_both_sides_and_what_is_needed_are_said() -> None:
    first, other = Estimate(33.5, 1.0, 4, name="A"), Estimate(95.0, 1.0, 4, name="B")
    plain = larger("A is above B.", first, other)
    assert compared(plain).startswith("A 33.5 vs B 95, needs A > B: -61.5 ± ")
    assert left_of(plain) == {"pairs": 0}
    assert "needs A > B − 1: " in compared(larger("A is at least B less 1.", first, other, by=-1))
    labelled = {"A, rate_0.1": 2.0, "B": 1.0, "needed_difference": 0.0}
    assert (
        compared(Check("A is above B.", "holds", labelled)) == "A (rate 0.1): 2 vs B: 1, needs A (rate 0.1) > B: +1"
    )
    listed = {"gamma_1, gamma_2": 2.0, "W": 1.0, "needed_factor": 1.0}
    assert compared(Check("It is.", "holds", listed)) == "gamma 1, gamma 2: 2 vs W: 1, needs gamma 1, gamma 2 > W"
    stops = opposite(trains("It stops.", Estimate(12.0), Estimate(90.0), 10.0))
    # Half of the gain of 80 points over 10 %.
    assert compared(stops) == "accuracy 12.0 % ± 0 vs control 90.0 %, needs < 50.0 % (half of the control's gain)"
    assert compared(Check("It is 3.", "holds", {"value": 3.0})) == ""


def test_a_claim_not_run_at_the_papers_kind_says_what_it_takes() -> None:
    small = [result_of("fixup/table-1", "small", checks=(check("holds"), PRESENT), distance=OTHER)]
    for minutes, words in ((14, "14 min"), (None, "the weights")):
        claim = replace(CLAIM, minutes=minutes, to_decide="the weights")
        for results, is_said in ((small, True), ([], True), (decided("holds").results, False)):
            row = Decided(claim, results, [own for result in results for own in result.checks[:1]], ())
            assert (words in row.why) == is_said, (minutes, row.why)
