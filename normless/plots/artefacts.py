"""The page of artefacts: verdicts by paper, and the published beside the measured numbers of each artefact.

One self-contained HTML document; without its script it is complete, but cannot be filtered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    """An artefact at one budget; `setup` and `provenance` as (name, value).

    Attributes:
        verdict: one of `normless.plots.VERDICT_INKS`.
        basis: what the checks rest on, a key of `BASES`; empty if an error came first.
        error: the message of an error; empty if there was none.
        table: published beside measured.
        left_out: how many rows the table lacks, and where they are; empty if none.
        svg: the figure as `normless.plots.inline_svg_text` makes it; empty if there is none.
        remarks: notes for the reader.
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
    """An artefact: what its paper says, and the result at each budget that was run.

    The id is `PAPER/NAME`, the kind such as `training`; the setup is the paper's, as (name, value).
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
class HeadlineRow:
    """A headline claim: the paper's number and ours, the verdict and its word, why, and the ids that it rests on."""

    claim: str
    printed: str
    ours: str
    verdict: str
    word: str
    why: str
    ids: Sequence[str]


@dataclass(frozen=True)
class ArtefactsPage:
    """What the page says, in this order; the other fields are those of `normless.plots.Page`."""

    title: str
    finding: str
    caution: str
    papers: Sequence[PaperGroup]
    facts: Sequence[tuple[str, str]] = ()
    headlines: Sequence[HeadlineRow] = ()

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
    by_basis = [(basis, budget, _verdicts(page.cards, budget, basis)) for budget in page.budgets for basis in BASES]
    return template("artefacts.html.j2").render(
        page=page,
        summary=[(paper, budget, _verdicts(paper.cards, budget)) for budget in page.budgets for paper in page.papers],
        by_basis=[row for row in by_basis if row[2]],
        bases=BASES,
        inks=VERDICT_INKS,
        colours=css_variables() | {f"verdict-{name}": ink for name, ink in VERDICT_INKS.items()},
        linked=_linker(mentions),
        # Not by those that it names itself, where a link stands already.
        mentioned_by={
            name: [other for other, others in mentions.items() if name in others and other not in named]
            for name, named in mentions.items()
        },
        Markup=Markup,
    )


def write_artefacts(page: ArtefactsPage, path: Path) -> Path:
    """Write the page as UTF-8; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_artefacts(page), encoding="utf-8")
    return path


def _verdicts(cards: Sequence[Card], budget: str, basis: str | None = None) -> Counter[str]:
    """How often each verdict comes at a budget, of one class of evidence or of all."""
    results = [result for card in cards for result in card.results if result.budget == budget]
    return Counter(result.verdict for result in results if basis in (None, result.basis))


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


def _ids(known: Sequence[str]) -> re.Pattern[str]:
    """Finds ids in a text, the longest first: figure-10 is not figure-1 and a zero."""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    return re.compile(rf"(?<![\w/-])(?:{names})(?![\w-])" if names else r"(?!)")


def _linker(known: Iterable[str]) -> Callable[[str], Markup]:
    """A function from text to markup in which the ids of artefacts link to them."""
    pattern = _ids(list(known))
    return lambda text: Markup(pattern.sub(r'<a href="#\g<0>">\g<0></a>', str(escape(text))))
