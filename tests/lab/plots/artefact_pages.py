"""A page of made-up artefacts: what the tests of the page look at."""

from __future__ import annotations

import pandas as pd

from normless_lab.plots import Column, Table, accuracy_against_depth, inline_svg
from normless_lab.plots.artefacts import ArtefactsPage, Card, CheckedClaim, PaperGroup, Result

PAPERS = ("skipinit", "fixup", "gamma")
KINDS = ("analytic", "probe", "training")
BASES = ("formula", "measurement", "training")
VERDICTS = ("holds", "fails", "inconclusive", "error")
PER_PAPER = 8


def card_id(place: int) -> str:
    return f"{PAPERS[place // PER_PAPER]}/figure-{place % PER_PAPER + 1}"


def made_up_page() -> ArtefactsPage:
    """Eight artefacts of each of three papers; verdicts and kinds in turn; every third at two budgets."""
    papers = []
    for number, key in enumerate(PAPERS):
        cards = [_card(PER_PAPER * number + place) for place in range(PER_PAPER)]
        papers.append(PaperGroup(key, f"Author {number}", f"On {key}", cards, not_run=(f"{key}/table-9",)))
    return ArtefactsPage("Artefacts", "Some hold.", "They are made up.", papers, [("page by", "a test")])


def _card(place: int) -> Card:
    name = card_id(place)
    results = [_result(place, "smoke", VERDICTS[place % 4])]
    results += [_result(place, "small", "holds")] if place % 3 == 0 else []
    return Card(
        id=name,
        kind=KINDS[place % 3],
        title=f"Title {place} <of a figure> with a_very_long_name_that_has_no_place_to_break_{'x' * 60}",
        claim=f"Claim {place}: the variance doubles, as skipinit/figure-1 says."
        + " So it does, word by word." * place,
        where="section 1",
        note="Compare fixup/figure-2; fixup/table-9 is not here.",
        setup=[("architecture", "Wide-ResNet-16-4"), ("rates", ", ".join(f"2^-{n}" for n in range(40)))],
        results=results,
    )


def _result(place: int, budget: str, verdict: str) -> Result:
    wide = [Column("depth", numeric=True), *(Column(f"quantity number {n}", numeric=True) for n in range(place % 12))]
    runs = pd.DataFrame({"depth": [16, 100], "scheme": "fixup", "outcome": "trained", "test_accuracy": [0.9, 0.8]})
    name = f"{card_id(place).replace('/', '-')}-{budget}"
    return Result(
        budget=budget,
        verdict=verdict,
        basis=BASES[place % 3],
        error="No memory was left." if verdict == "error" else "",
        checks=[CheckedClaim(f"Check of unicorn{place}.", verdict, [("measured", "1.98"), ("expected", "2")])],
        table=Table("Published beside measured", wide, [["16"] * len(wide), ["100"] * len(wide)]),
        left_out="50 more rows stand in measured.csv.",
        svg=inline_svg(accuracy_against_depth(runs), name=name, description=f"accuracy of {name}"),
        caption=f"Accuracy {place}.",
        remarks=["One seed."],
        setup=[("network", "Wide-ResNet-16-1"), ("seeds", "0, 1")],
        provenance=[("normless", "0.1.0")],
        same_runs=[card_id(place ^ 1)],
    )
