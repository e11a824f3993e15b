"""The headline claims in one table: as Markdown, and as rows of the page of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from normless_lab.plots import HeadlineRow
from normless_lab.sweeps import RunState
from normless_papers.pages.headline import SHOWN_AS, Decided, Headline, decide, headlines
from normless_papers.pages.tables import NOTHING
from normless_papers.pages.wording import effect_of
from normless_papers.published import PAPERS
from normless_papers.results.reproduce import laboratory_in
from normless_papers.results.storage import load

_SECONDS_AN_HOUR = 3600
_INTRODUCTION = """# The headline claims

<!-- Written by normless report; do not edit. -->
Fifteen claims of five papers, each decided by the checks that its design names ([`decisive.md`](decisive.md)):
*refuted* where one fails, *holds* where all hold, *open* else. What is refuted comes first. Ours is the effect that
decides, with its 95 % interval, at a set-up that is named, smaller than the paper's: a verdict is one of that set-up.
Core-hours are of the training runs; their rows are [`runs.parquet`](runs.parquet), of which `normless report --from
docs/reproduction/runs.parquet` makes this table and [the pages with the figures](claims.html) without training.
`make evidence` repeats everything; it resumes.
"""


def front_page_of(out: Path) -> str:
    """The table of the headline claims of a folder of results, as Markdown."""
    decided = decide(lambda name, budget: load(out, name, budget))
    with laboratory_in(out) as laboratory:
        rows = [_markdown(place, one, laboratory.state) for place, one in enumerate(decided, 1)]
    counts = ", ".join(f"{sum(one.outcome == name for one in decided)} {name}" for name in SHOWN_AS)
    heading = "| | claim | paper | ours | verdict | runs | core-hours | why | repeat |"
    rule = "| ---: | --- | --- | --- | --- | ---: | ---: | --- | --- |"
    return "\n".join([_INTRODUCTION, f"Of {len(decided)} claims: {counts}.", "", heading, rule, *rows, ""])


def headline_rows(out: Path) -> list[HeadlineRow]:
    """The same for the pages of results; nothing where no artefact of a headline was carried out."""
    decided = decide(lambda name, budget: load(out, name, budget))
    return [_row_of(one) for one in decided] if any(one.results for one in decided) else []


def _row_of(one: Decided) -> HeadlineRow:
    headline, ids = one.headline, [result.id for result in one.results]
    return HeadlineRow(
        claim=headline.claim,
        printed=headline.printed,
        ours=_ours(one),
        verdict=SHOWN_AS[one.outcome],
        word=one.outcome,
        why=one.why,
        ids=sorted(ids, key=lambda name: one.shown is None or name != one.shown.id),
        paper=headline.paper,
        anchor=_anchor(headline),
        refuted_if=headline.refuted_if,
        to_decide=headline.to_decide if one.outcome == "open" else "",
        command=one.command,
        budget=one.budget,
    )


def _anchor(headline: Headline) -> str:
    """Of a headline on its paper's page: its number in the file, which no verdict changes."""
    return f"claim-{headlines().index(headline) + 1}"


def _markdown(place: int, one: Decided, state: RunState) -> str:
    hours = sum(row.seconds for row in state.read(one.runs).values()) / _SECONDS_AN_HOUR
    cost = [str(len(one.runs)), f"{hours:.2f}"] if one.runs else [NOTHING, NOTHING]
    authors = PAPERS[one.headline.paper].partition(",")[0]
    figure = f" ([figure]({one.headline.paper}.html#{_anchor(one.headline)}))" if one.results else ""
    ours = f"{_ours(one)}{figure}"
    cells = [f"{one.headline.claim} ({authors})", one.headline.printed, ours, f"**{one.outcome}**", *cost]
    return _row([str(place), *cells, one.why, f"`{one.command}`"])


def _ours(one: Decided) -> str:
    return effect_of(one.deciding) if one.deciding else NOTHING


def _row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown, in which a bar would end a cell."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
