"""The page of artefacts: verdicts by paper, and the published beside the measured numbers of each artefact.

One self-contained HTML document; without its script it is complete, but cannot be filtered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

from normless.plots.page import Table, template
from normless.plots.palette import VERDICT_INKS, css_variables

# What the checks of a result can rest on, and what that means.
BASES = {
    "formula": "our code beside the paper's formula",
    "measurement": "networks and random matrices, measured",
    "training": "training runs",
}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, its verdict, and the numbers that decide it as (name, number)."""

    claim: str
    verdict: str
    numbers: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Result:
    """An artefact at one budget.

    Attributes:
        budget: its name.
        verdict: one of `normless.plots.palette.VERDICT_INKS`.
        basis: what the checks rest on: formula, measurement or training; empty if an error came first.
        error: the message of an error; empty if there was none.
        checks: of the claim.
        table: published beside measured.
        left_out: how many rows the table lacks, and where they are; empty if none.
        svg: the figure as `normless.plots.inline.inline_svg_text` makes it; empty if there is none.
        caption: of the figure.
        remarks: notes for the reader.
        setup, provenance: as (name, value).
        same_runs: ids of other artefacts that rest on the same training runs.
    """

    budget: str
    verdict: str
    basis: str = ""
    error: str = ""
    checks: Sequence[CheckedClaim] = ()
    table: Table | None = None
    left_out: str = ""
    svg: str = ""
    caption: str = ""
    remarks: Sequence[str] = ()
    setup: Sequence[tuple[str, str]] = ()
    provenance: Sequence[tuple[str, str]] = ()
    same_runs: Sequence[str] = ()


@dataclass(frozen=True)
class Card:
    """An artefact: what its paper says, and the result at each budget.

    Attributes:
        id: `PAPER/NAME`.
        kind: what it is, as `training`.
        title, claim, where, note: as the paper's index has them.
        setup: the paper's, as (name, value).
        results: one for each budget that was run.
    """

    id: str
    kind: str
    title: str
    claim: str
    where: str
    note: str
    setup: Sequence[tuple[str, str]]
    results: Sequence[Result]

    @property
    def paper(self) -> str:
        """The key of the paper."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class PaperGroup:
    """A paper: who wrote it and what it is called, its artefacts, and the ids of those not run."""

    key: str
    authors: str
    work: str
    cards: Sequence[Card]
    not_run: Sequence[str] = ()


@dataclass(frozen=True)
class ArtefactsPage:
    """What the page says, in the order in which it says it.

    Attributes:
        title, finding, caution: as of `normless.plots.page.Page`.
        papers: each with its artefacts.
        facts: about the whole page, as (name, value).
    """

    title: str
    finding: str
    caution: str
    papers: Sequence[PaperGroup]
    facts: Sequence[tuple[str, str]] = field(default=())

    @property
    def cards(self) -> list[Card]:
        """Of all papers."""
        return [card for paper in self.papers for card in paper.cards]

    @property
    def budgets(self) -> list[str]:
        """That occur, in the order in which they first do."""
        return list(dict.fromkeys(result.budget for card in self.cards for result in card.results))

    @property
    def kinds(self) -> list[str]:
        """That occur, by name."""
        return sorted({card.kind for card in self.cards})


def render_artefacts(page: ArtefactsPage) -> str:
    """The page as one HTML document: style, script, figures and tables are inside it."""
    mentions = _mentions(page.cards)
    return template("artefacts.html.j2").render(
        page=page,
        summary=_summary(page),
        by_basis=_by_basis(page),
        bases=BASES,
        inks=VERDICT_INKS,
        colours=css_variables() | {f"verdict-{name}": ink for name, ink in VERDICT_INKS.items()},
        linked=_linker(mentions),
        mentioned_by={card.id: _naming(card.id, mentions) for card in page.cards},
        Markup=Markup,
    )


def write_artefacts(page: ArtefactsPage, path: Path) -> Path:
    """Write the page as UTF-8; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_artefacts(page), encoding="utf-8")
    return path


def _summary(page: ArtefactsPage) -> list[tuple[PaperGroup, str, Counter[str], int]]:
    """A row for each paper and budget: the counts of the verdicts, and how many artefacts have none."""
    rows = []
    for budget in page.budgets:
        for paper in page.papers:
            results = [result for card in paper.cards for result in card.results if result.budget == budget]
            left = len(paper.cards) + len(paper.not_run) - len(results)
            rows.append((paper, budget, Counter(result.verdict for result in results), left))
    return rows


def _by_basis(page: ArtefactsPage) -> list[tuple[str, str, Counter[str]]]:
    """A row for each class of evidence and budget: the counts of the verdicts."""
    results = [result for card in page.cards for result in card.results]
    counts = {
        (basis, budget): Counter(one.verdict for one in results if (one.basis, one.budget) == (basis, budget))
        for budget in page.budgets
        for basis in BASES
    }
    return [(basis, budget, one) for (basis, budget), one in counts.items() if one]


def _mentions(cards: Sequence[Card]) -> dict[str, list[str]]:
    """The ids of other artefacts in the texts of each."""
    known = [card.id for card in cards]
    pattern = _ids(known)
    mentions = {}
    for card in cards:
        texts = [card.title, card.claim, card.note, *(value for _, value in card.setup)]
        texts += [text for result in card.results for text in result.remarks]
        named = dict.fromkeys(match for text in texts for match in pattern.findall(text))
        mentions[card.id] = [name for name in named if name != card.id]
    return mentions


def _naming(name: str, mentions: Mapping[str, Sequence[str]]) -> list[str]:
    """What names an artefact and is not named by it, where a link stands already."""
    return [other for other, named in mentions.items() if name in named and other not in mentions[name]]


def _ids(known: Sequence[str]) -> re.Pattern[str]:
    """Finds ids in a text, the longest first: figure-10 is not figure-1 and a zero."""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    return re.compile(rf"(?<![\w/-])(?:{names})(?![\w-])" if names else r"(?!)")


def _linker(known: Iterable[str]) -> Callable[[str], Markup]:
    """A function from text to markup in which the ids of artefacts link to them."""
    pattern = _ids(list(known))

    def linked(text: str) -> Markup:
        markup, end = Markup(""), 0
        for match in pattern.finditer(text):
            markup += escape(text[end : match.start()])
            markup += Markup('<a href="#{0}">{0}</a>').format(match[0])
            end = match.end()
        return markup + escape(text[end:])

    return linked
