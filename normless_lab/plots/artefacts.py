"""The pages of artefacts: a front page with the verdicts, and a page per paper with published and measured numbers.

Each page is a self-contained HTML document. Without its script it is complete, but cannot be filtered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from normless_lab.plots.page import Table, template
from normless_lab.plots.palette import VERDICT_INKS, css_variables
from normless_lab.plots.save import with_shared_styles

# The possible bases of the checks of a result, with their meanings.
BASES = {
    "formula": "our code beside the paper's formula",
    "measurement": "networks and random matrices, measured",
    "training": "training runs",
}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, its verdict, the numbers that decide it as (name, number), and a description of their comparison."""

    claim: str
    verdict: str
    numbers: Sequence[tuple[str, str]] = ()
    compared: str = ""


@dataclass(frozen=True)
class Result:
    """An artefact at one budget; `setup` and `provenance` as (name, value).

    Attributes:
        verdict: one of `normless_lab.plots.VERDICT_INKS`.
        basis: the basis of the checks, a key of `BASES`; empty after an error.
        error: the message of an error; empty if there was none.
        table: published and measured numbers.
        left_out: the number of omitted rows, and where they are; empty if none.
        svg: the figure from `normless_lab.plots.inline_svg_text`; empty without a figure.
        remarks: notes for the reader.
        same_runs: ids of other artefacts that use the same training runs.
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
    """An artefact: the claim of its paper, and the result at each budget that was run.

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
    """A paper: its authors and title, its artefacts, the ids of those not run, and the finding."""

    key: str
    authors: str
    work: str
    cards: Sequence[Card]
    not_run: Sequence[str] = ()
    finding: str = ""

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{self.key}.html"

    def of_verdicts(self, *verdicts: str) -> list[Card]:
        """Return the artefacts with one of these verdicts at the last budget, in the order of the verdicts."""
        return [card for verdict in verdicts for card in self.cards if card.results[-1].verdict == verdict]


@dataclass(frozen=True)
class HeadlineRow:
    """A headline claim with its decision.

    Attributes:
        printed, ours: the paper's number and ours.
        verdict, word: one of `normless_lab.plots.VERDICT_INKS`, and its name.
        why: the verdict in words.
        ids: ids of the artefacts of the claim; the first figure shown is that of the first.
        paper: the key of the paper with the claim on its page.
        anchor: its id on the page.
        refuted_if: the condition for its refutation.
        to_decide: runs that would decide it; empty if it is decided or if such runs are not known.
        command: the command that repeats it.
        budget: the budget of the decision.
    """

    claim: str
    printed: str
    ours: str
    verdict: str
    word: str
    why: str
    ids: Sequence[str]
    paper: str = ""
    anchor: str = ""
    refuted_if: str = ""
    to_decide: str = ""
    command: str = ""
    budget: str = ""


@dataclass(frozen=True)
class ArtefactsPage:
    """The contents of the page, in this order; the other fields are those of `normless_lab.plots.Page`."""

    title: str
    finding: str
    caution: str
    papers: Sequence[PaperGroup]
    facts: Sequence[tuple[str, str]] = ()
    headlines: Sequence[HeadlineRow] = ()

    @property
    def cards(self) -> list[Card]:
        """The cards of all papers."""
        return [card for paper in self.papers for card in paper.cards]

    @property
    def budgets(self) -> list[str]:
        """The budgets of the results, in the order of first occurrence."""
        return list(dict.fromkeys(result.budget for card in self.cards for result in card.results))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the cards, by name."""
        return sorted({card.kind for card in self.cards})


def render_artefacts(page: ArtefactsPage, front: str = "index.html") -> dict[str, str]:
    """Return the front page and the page of each paper by their file names.

    Each page is one HTML document, which contains its style, script, figures and tables.

    Raises:
        ValueError: the front page has the name of a paper's.
    """
    papers = {paper.file: paper for paper in page.papers if paper.cards}
    if front in papers:
        raise ValueError(f"Expected another name for the front page than {front}, the page of a paper.")
    return {front: _render(page, None, front)} | {name: _render(page, group, front) for name, group in papers.items()}


def _render(page: ArtefactsPage, paper: PaperGroup | None, front: str) -> str:
    mentions = _mentions(page.cards)
    by_basis = [(basis, budget, _verdicts(page.cards, budget, basis)) for budget in page.budgets for basis in BASES]
    rows = [row for row in page.headlines if paper is None or row.paper == paper.key]
    drawn = {
        (card.id, result.budget): result
        for card in (paper.cards if paper else ())
        for result in card.results
        if result.svg
    }
    svgs = {place: result.svg for place, result in drawn.items()}
    captions = {place: result.caption for place, result in drawn.items()}
    texts, styles = with_shared_styles(list(svgs.values()))
    return template("artefacts.html.j2").render(
        page=page,
        paper=paper,
        front=front,
        title=f"{paper.authors}: {paper.work}" if paper else page.title,
        headlines=rows,
        svgs=dict(zip(svgs, map(Markup, texts), strict=True)),
        styles=Markup(styles),
        shown_at=_shown_at(rows, svgs),
        figures_of=lambda row: [(place, captions[place]) for place in _figures_of(row, svgs)[:1]],
        summary=[(group, budget, _verdicts(group.cards, budget)) for budget in page.budgets for group in page.papers],
        by_basis=[row for row in by_basis if row[2]],
        bases=BASES,
        inks=VERDICT_INKS,
        colours=css_variables() | {f"verdict-{name}": ink for name, ink in VERDICT_INKS.items()},
        linked=_linker(mentions, paper.key if paper else ""),
        # Without the artefacts that it mentions itself, which already have a link.
        mentioned_by={
            name: [other for other, others in mentions.items() if name in others and other not in named]
            for name, named in mentions.items()
        },
    )


def _figures_of(row: HeadlineRow, drawn: Container[tuple[str, str]]) -> list[tuple[str, str]]:
    """The figures of a headline claim on its page, the one to be shown first."""
    return [(name, row.budget) for name in row.ids if (name, row.budget) in drawn]


def _shown_at(rows: Sequence[HeadlineRow], drawn: Container[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The figures that stand at a headline claim, with its anchor: at the first of those that show it."""
    places = dict[tuple[str, str], str]()
    for row in rows:
        for place in _figures_of(row, drawn)[:1]:
            places.setdefault(place, row.anchor)
    return places


def write_artefacts(page: ArtefactsPage, path: Path) -> Path:
    """Write the front page to a path, and `PAPER.html` of each paper beside it, as UTF-8; return the path."""
    return write_artefact_pages(page, path)[0]


def write_artefact_pages(page: ArtefactsPage, path: Path) -> list[Path]:
    """Write the pages as `write_artefacts` does; return all paths, that of the front page first."""
    texts = render_artefacts(page, path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path.with_name(name).write_text(text, encoding="utf-8")
    return [path.with_name(name) for name in texts]


def _verdicts(cards: Sequence[Card], budget: str, basis: str | None = None) -> Counter[str]:
    """Count each verdict at a budget, for one class of evidence or for all."""
    results = [result for card in cards for result in card.results if result.budget == budget]
    return Counter(result.verdict for result in results if basis in (None, result.basis))


def _mentions(cards: Sequence[Card]) -> dict[str, list[str]]:
    """Return the ids of other artefacts in the texts of each artefact."""
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
    """Return a pattern for ids in a text, the longest first, so that figure-10 is not read as figure-1."""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    return re.compile(rf"(?<![\w/-])(?:{names})(?![\w-])" if names else r"(?!)")


def _linker(known: Iterable[str], paper: str) -> Callable[[str], Markup]:
    """A function from text to markup in which the ids of artefacts link to them, from the page of a paper."""
    pattern = _ids(list(known))

    def link(match: re.Match[str]) -> str:
        key = match[0].partition("/")[0]
        return f'<a href="{"" if key == paper else f"{key}.html"}#{match[0]}">{match[0]}</a>'

    return lambda text: Markup(pattern.sub(link, str(escape(text))))
