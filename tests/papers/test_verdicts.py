"""Verdicts, silences, protocols and headline claims: their rows and checks; the committed pages are current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from papers_helpers import carried_out, result_of
from papers_runs import End, evidence_of
from test_measured_artefacts import CASES
from worlds import WORLDS, checks_of

from normless_papers.artefact import Context
from normless_papers.claims import Claim, Verdict
from normless_papers.distance import Distance
from normless_papers.pages.headline import (
    Decided,
    Headline,
    headline_artefacts,
    headlines,
)
from normless_papers.pages.silent import effects, section_of, silences, trained
from normless_papers.pages.verdicts import decided_by, summary_of, verdicts_page
from normless_papers.published import PAPERS, published

REPRODUCTION = Path(__file__).parents[2] / "docs" / "reproduction"
OPEN = result_of("fixup/table-1", "small", "inconclusive")
FAILED = result_of("fixup/table-1", "gpu", "fails", distance=Distance())


def row(page: str, name: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_artefact_has_a_row_with_its_last_verdict() -> None:
    page = verdicts_page([result_of("fixup/table-1"), FAILED, result_of("fixup/table-4")])
    assert all(row(page, name) for name in published())
    assert row(page, "fixup/table-1")[1:4] == ["training", "gpu", "not seen here"]
    assert row(page, "fixup/table-4")[3] == "reproduced, a demonstration"
    assert row(page, "gamma/table-2")[1:] == ["", "", "not run", "", ""]
    assert row(page, "all")[1:] == ["2", "1", "1 reproduced (1 in demonstrations), 1 not seen here"]


@pytest.mark.parametrize("name", sorted({name for own in silences() for name in own.checks}))
def test_the_words_of_a_silence_find_a_check_of_its_artefact(name: str, context: Context) -> None:
    (own,) = [entry for entry in silences() if name in entry.checks]
    checks = checks_of(name, True) if name in WORLDS else carried_out(name, context, **CASES[name].settings).checks
    assert any(own.checks[name] in check.claim for check in checks)


@pytest.mark.parametrize(
    "paper", [pytest.param(paper, marks=() if paper == "fixup" else pytest.mark.slow) for paper in PAPERS]
)
def test_the_page_of_protocols_is_that_of_the_code_and_every_training_has_sentences(paper: str) -> None:
    """`normless report --protocols docs/reproduction/protocols.md` writes it anew."""
    page = (REPRODUCTION / "protocols.md").read_text(encoding="utf-8")
    assert section_of(paper) in page
    assert effects() in page
    assert [name for name in trained(paper) if not published()[name].protocol] == []


# Measured on networks, not decided by runs that can be made up: the committed file has their checks.
MEASURED = {"understanding-bn/table-1", "gamma/figure-5"}
CLAIM = Headline("It trains.", "94 %", {"fixup/table-1": ["Fixup trains", "Batch norm has"]}, "it does not")
PRESENT = Claim("The control is at its plateau.", "holds", {"control": 93.0}, "premise")
AS_PRINTED = Distance()
ABSENT = replace(PRESENT, verdict="inconclusive")


def check(verdict: Verdict) -> Claim:
    return Claim("Fixup trains.", verdict, {"first": 3.0, "second": 1.0, "needed_difference": 0.0, "half_width": 0.5})


def decided(
    *verdicts: Verdict, missing: Sequence[str] = (), distance: Distance = AS_PRINTED, premise: Claim = PRESENT
) -> Decided:
    checks = list(map(check, verdicts))
    results = [result_of("fixup/table-1", "gpu", checks=(*checks, premise), distance=distance)] if verdicts else []
    return Decided(CLAIM, results, checks, missing)


@pytest.mark.parametrize("name", [name for name in headline_artefacts() if name not in MEASURED])
def test_every_named_check_exists(name: str) -> None:
    checks = evidence_of(name, lambda *_: End(90.0, bleu=30.0), "small").checks
    for headline in headlines():
        for start in headline.checks.get(name, ()):
            named = [check for check in checks if fnmatchcase(check.claim, f"{start}*")]
            assert named, start


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


def test_without_the_phenomenon_in_the_control_nothing_is_contradicted() -> None:
    assert decided("fails").outcome == "contradicted"
    assert decided("fails", premise=ABSENT).outcome == "not seen here"
    assert decided("fails", distance=Distance(length="30 epochs instead of 164")).outcome == "contradicted"


@pytest.mark.parametrize(
    ("numbers", "times"),
    [
        ({"a": 2.0, "b": 1.0, "needed_difference": 0.5, "half_width": 1.0}, "4 times"),
        ({"measured": 0.75, "low": 0.0, "high": 1.0, "half_width": 0.5}, "4 times"),
        ({"accuracy": 30.0, "control": 50.0, "chance": 10.0, "needed": 30.5, "half_width": 1.0}, "4 times"),
        # A difference of nothing is decided by no number of seeds, and a share of draws by none that is known.
        ({"a": 1.0, "b": 1.0, "needed_difference": 0.0, "half_width": 1.0}, ""),
        ({"share_of_draws": 0.9, "draws": 15.0}, ""),
    ],
)
def test_an_undecided_check_says_how_many_seeds_would_decide_it(numbers: dict[str, float], times: str) -> None:
    """The half width of an interval falls as 1/√n."""
    undecided = replace(FAILED, checks=(Claim("A is above B.", "inconclusive", numbers),))
    said = f"To decide it: about {times} the seeds for: A is above B." if times else ""
    assert decided_by(undecided) == said
    assert not decided_by(replace(undecided, checks=(Claim("A is above B.", "holds", numbers),)))
    failed = Claim("C is above D.", "fails", numbers)
    assert not decided_by(replace(undecided, checks=(*undecided.checks, failed)))


def test_what_a_demonstration_cannot_decide_names_the_budget_that_can() -> None:
    assert "`normless reproduce fixup/table-1 --budget gpu` (59 minutes of an H100)" in decided_by(OPEN)
    assert "--budget paper`" in decided_by(replace(OPEN, id="fixup/table-4"))


def test_an_artefact_of_a_person_is_counted_on_the_page_of_its_paper() -> None:
    own = replace(OPEN, id="mine/figure-1", entry=replace(published()["fixup/table-1"], id="mine/figure-1"))
    assert summary_of([own], ["mine"]).startswith("Of 1 artefacts 1 were carried out: 0 at the paper's own kind")
