"""The page of the verdicts on all artefacts: counts and reasons."""

from __future__ import annotations

from dataclasses import replace

from synthetic_results import made_up

from normless_papers.claims import Check, at_scale
from normless_papers.distance import Distance
from normless_papers.pages.verdicts import by_verdict, verdicts_page, why_of
from normless_papers.published import published

FAILED = made_up("fixup/table-1", "gpu", "fails", distance=Distance())


def row(page: str, name: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_artefact_has_a_row_with_its_last_verdict() -> None:
    page = verdicts_page([made_up("fixup/table-1"), FAILED, made_up("fixup/table-4")])
    assert all(row(page, name) for name in published())
    assert row(page, "fixup/table-1")[1:4] == ["training", "gpu", "not seen here"]
    assert row(page, "fixup/table-4")[3] == "reproduced, a demonstration"
    assert row(page, "gamma/table-2")[1:] == ["", "", "not run", "", ""]
    assert row(page, "all")[1:] == ["2", "1", "1 reproduced (1 in demonstrations), 1 not seen here"]
    assert row(page, "fixup")[1:] == row(page, "training")[1:] == row(page, "all")[1:]


def test_the_reason_names_the_check_and_what_keeps_it_from_a_contradiction() -> None:
    assert why_of(FAILED).startswith("1 of 2 checks hold. Fails: The loss falls (first 2.3, last nan, bound inf).")
    assert why_of(FAILED).endswith("since it is not known what the control reaches when trained on.")
    assert "of another kind than the paper's" in why_of(replace(FAILED, distance=Distance(of_same_kind=False)))
    premises = {verdict: Check("It is at its plateau.", verdict, {}, "premise") for verdict in ("holds", "fails")}
    below, present = (replace(FAILED, checks=(*FAILED.checks, premises[name])) for name in ("fails", "holds"))
    assert why_of(below).endswith("since the control did not reach what it reaches when trained on.")
    assert present.verdict == "contradicted"
    assert "contradicts nothing" not in why_of(present)
    assert why_of(made_up("fixup/table-1")) == "2 of 2 checks hold."
    assert why_of(replace(FAILED, error="It broke.")) == "It broke."
    large = at_scale(Check("It is larger.", "fails", {"value": 1.0}), "3 epochs of digits.", of="shape")
    not_asked = replace(FAILED, checks=(large,))
    assert why_of(not_asked) == "0 of 1 checks hold. Not asked here: It is larger (value 1)."


def test_results_are_counted_by_verdict_and_demonstration() -> None:
    results = [made_up("fixup/table-1"), replace(made_up("fixup/theorem-4"), basis="formula"), FAILED]
    assert by_verdict(results) == {"reproduced": [True], "implemented": [False], "not seen here": [False]}
    page = verdicts_page(results)
    assert row(page, "fixup/theorem-4")[3] == "implemented"
    assert row(page, "formula")[1:] == ["1", "0", "1 implemented"]
