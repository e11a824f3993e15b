"""The pages of verdicts, of silences and of protocols: counts, reasons, and that the committed ones are current."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from papers_helpers import result_of
from worlds import checks_of

from normless_papers.claims import Check, at_scale
from normless_papers.distance import Distance
from normless_papers.experiments.protocol import ASPECTS, protocol_of, told
from normless_papers.pages.protocols import effects, section_of, trained
from normless_papers.pages.silent import silences, silent_page
from normless_papers.pages.site import render
from normless_papers.pages.verdicts import by_verdict, verdicts_page, why_of
from normless_papers.published import PAPERS, published

REPRODUCTION = Path(__file__).parents[2] / "docs" / "reproduction"
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
    assert why_of(result_of("fixup/table-1")) == "2 of 2 checks hold."
    assert why_of(replace(FAILED, error="It broke.")) == "It broke."
    large = at_scale(Check("It is larger.", "fails", {"value": 1.0}), "3 epochs of digits.", of="shape")
    not_asked = replace(FAILED, checks=(large,))
    assert why_of(not_asked) == "0 of 1 checks hold. Not asked here: It is larger (value 1)."


def test_results_are_counted_by_verdict_and_demonstration() -> None:
    results = [result_of("fixup/table-1"), result_of("fixup/theorem-4", basis="formula"), FAILED]
    assert by_verdict(results) == {"reproduced": [True], "implemented": [False], "not seen here": [False]}
    page = verdicts_page(results)
    assert row(page, "fixup/theorem-4")[3] == "implemented"
    assert row(page, "formula")[1:] == ["1", "0", "1 implemented"]


def test_every_silence_says_what_the_text_says_why_and_what_was_measured() -> None:
    committed, written = (REPRODUCTION / "wrong_or_silent.md").read_text(encoding="utf-8"), silent_page([])
    pages = render([result_of("gamma/figure-6")], {}, [], "index.html")
    names = [own.title for own in silences()]
    assert len(names) == len(set(names)) >= 8
    for own in silences():
        assert all((own.where, own.measured))
        assert set(own.checks) <= set(published())
        for words in (own.title, own.text, own.derivation, own.conclusion):
            assert words
            assert words in committed
            assert words in written
        assert own.title in unescape(pages["index.html"])
        assert own.conclusion not in pages["gamma.html"]


@pytest.mark.parametrize("name", sorted({name for own in silences() for name in own.checks}))
def test_the_words_of_a_silence_find_a_check_of_its_artefact(name: str) -> None:
    (own,) = [entry for entry in silences() if name in entry.checks]
    assert any(own.checks[name] in check.claim for check in checks_of(name, True))


def test_numbers_of_a_silence_are_those_of_results_and_stated_ones_without_them() -> None:
    (own,) = [entry for entry in silences() if "gamma/figure-6" in entry.checks]
    other = result_of("fixup/table-1")
    assert own.numbers([other]) == [own.measured]
    slope = checks_of("gamma/figure-6", False)[-1]
    results = [replace(result_of("gamma/figure-6", budget), checks=(slope,)) for budget in ("smoke", "small")]
    (words,) = own.numbers([other, *results])
    assert words.startswith("gamma/figure-6 (small, ")
    assert "measured 0 " in words


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_of_protocols_is_that_of_the_code_and_every_training_has_sentences(paper: str) -> None:
    """`normless report --protocols docs/reproduction/protocols.md` writes it anew."""
    page = (REPRODUCTION / "protocols.md").read_text(encoding="utf-8")
    assert section_of(paper) in page
    assert effects() in page
    assert effects().count("\n### ") == effects().count("**Measured.**") == 2
    assert [name for name in trained(paper) if not published()[name].protocol] == []
    assert not {aspect for entry in published().values() for aspect in entry.protocol} - {*ASPECTS}


def test_values_are_told_by_the_labels_that_decide_them() -> None:
    labels = [{"depth": depth, "method": method} for depth in ("16", "100") for method in ("a", "b", "c")]
    for values, expected in (
        (["same"] * 6, "same"),
        ([*["net(depth=16, width=2)"] * 3, *["net(depth=100, width=2)"] * 3], "net(depth=16/100, width=2)"),
        ([*["0.1"] * 3, *["0.2"] * 3], "16: 0.1; 100: 0.2"),
        (["x", "y", "y"] * 2, "a: x; b, c: y"),
        (["p", "q", "q", "q", "q", "q"], "p; q"),
        (["", "y", "y"] * 2, "y"),
    ):
        assert told(list(zip(labels, values, strict=True))) == expected
    # The second sweep has no axis `norm`; with it, the norm decides.
    first = ({"norm": "post", "sweep": "a"}, "x")
    assert told([first, ({"sweep": "b"}, "y")]) == "a: x; b: y"
    assert told([first, ({"norm": "pre", "sweep": "b"}, "y")]) == "post: x; pre: y"


def test_a_protocol_says_what_is_trained() -> None:
    protocol = protocol_of("fixup/figure-4")
    found = [protocol[aspect] for aspect in ("network", "batch size", "rates")]
    assert found == ["resnet_cifar(depth=110)", "128", "0.1"]
