"""The headline claims in one table, as Markdown."""

from __future__ import annotations

from pathlib import Path

from normless_lab.sweeps import RunState
from normless_papers.pages.headline import OUTCOMES, Decided, decide
from normless_papers.pages.tables import ASPECTS, NOTHING, as_text, heading_of, row_of
from normless_papers.pages.wording import counted
from normless_papers.published import PAPERS
from normless_papers.results.reproduce import laboratory_in
from normless_papers.results.storage import load

_SECONDS_AN_HOUR = 3600
_INTRODUCTION = """# The headline claims

<!-- Written by normless report; do not edit. -->
Fifteen claims of five papers, each decided by the checks that its design names ([`decisive.md`](decisive.md)). A
verdict is about the set-up in which it was measured, whose distance from the paper's is in four columns.
*Reproduced*: all named checks hold there. *Contradicted*: one fails, data and network are of the paper's kind, and
the control reached what it reaches when trained on. *Not seen here*: everything else. A *demonstration* has other
data or another network than the paper, such as scikit-learn's digits: it shows that the machinery works on two
cores, and says nothing about the paper. "Ours" is the effect that decides, with its 95 % interval. The verdict on
the whole artefact stands below that on the claim. Core-hours are those of the training runs. Their rows are in
[`runs.parquet`](runs.parquet), from which `normless report --from docs/reproduction/runs.parquet` makes this table
and [the pages with the figures](claims.html) without training. `make evidence` repeats everything, and resumes if
it was interrupted.
"""


def decided_in(out: Path) -> list[Decided]:
    """Decide every headline by a folder of results; none if no artefact of a headline was carried out."""
    decided = decide(lambda name, budget: load(out, name, budget))
    return decided if any(row.results for row in decided) else []


def front_page_of(out: Path) -> str:
    """Return the table of the headline claims of a folder of results, as Markdown."""
    decided = decide(lambda name, budget: load(out, name, budget))
    with laboratory_in(out) as laboratory:
        rows = [_markdown(place, row, laboratory.state) for place, row in enumerate(decided, 1)]
    counts = counted({name: [row.demonstrates for row in decided if row.outcome == name] for name in OUTCOMES})
    names = ("", "claim", "paper", "ours", "verdict", *ASPECTS, "runs", "core-hours", "why", "repeat")
    heading = heading_of(names, right=("", "runs", "core-hours"))
    return "\n".join([_INTRODUCTION, f"Of {len(decided)} claims: {counts}.", "", *heading, *rows, ""])


def _markdown(place: int, row: Decided, state: RunState) -> str:
    headline = row.headline
    hours = sum(run.seconds for run in state.read(row.runs).values()) / _SECONDS_AN_HOUR
    cost = [str(len(row.runs)), f"{hours:.2f}"] if row.runs else [NOTHING, NOTHING]
    authors = PAPERS[headline.paper].partition(",")[0]
    details = f" ([details]({headline.paper}.html#{headline.anchor}))" if row.results else ""
    verdict = f"**{row.outcome}**{', a demonstration' if row.demonstrates else ''}<br>{as_text(row.whole)}"
    distance = map(as_text, row.distance)
    cells = [f"{headline.claim} ({authors})", headline.printed, f"{as_text(row.ours)}{details}", verdict, *distance]
    return row_of([str(place), *cells, *cost, as_text(row.why), f"`{row.command}`"])
