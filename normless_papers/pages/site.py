"""The pages of a folder of results: a front page with the verdicts, and a page per paper with its artefacts.

Each page is a self-contained HTML document. Without its script it is complete, but cannot be filtered.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from normless import __version__
from normless_lab.plots import VERDICT_INKS, css_variables, inline_image, template
from normless_papers.pages.headline import Decided, decided_in
from normless_papers.pages.silent import TITLE as SILENT, silences
from normless_papers.pages.tables import ASPECTS, compared, counted, fact_texts, left_of, spoken, table_of, text_of
from normless_papers.pages.verdicts import VERDICTS, by_verdict, decided_by, summary_of, why_of
from normless_papers.published import PAPERS, Published, published
from normless_papers.results.reproduction import FIGURE, Reproduction, ResultError, folder_of, stored

TITLE = "Five papers on normalization, carried out"
CAUTION = (
    "Each artefact of the papers is a table, figure, theorem, algorithm or guideline, and its claim is checked by "
    "numbers. A verdict is about the set-up at its budget. Reproduced: all checks of the shape of the result hold "
    "there. Implemented: our code agrees with a formula, which no experiment can refute. Contradicted: a check fails,"
    " data and network are of the paper’s kind, and the control reached what it reaches when trained on. Not seen "
    "here: everything else. Numbers that a paper prints have a verdict of their own, and so has what its text says "
    "beyond the claim. Trainings at smoke and small, on scikit-learn’s digits, demonstrate the machinery on two "
    "cores; the distance from the paper stands beside each result."
)
BASES = {
    "formula": "our code beside the paper's formula",
    "measurement": "networks and random matrices, measured",
    "training": "training runs",
}
# The parts of a paper's page, in this order.
PARTS = {
    "reproduced": "Reproduced at the paper's own kind of data and network",
    "contradicted": "Contradicted",
    "open": "Not seen here, and why",
    "demonstrated": "Demonstrations, with other data or another network",
    "implemented": "Implemented: our code beside a formula",
    "not-run": "Not run",
}
# The names on the page of what the user asked for.
_ASKED = {"data": "data asked for", "seed": "first seed", "settings": "settings of the budget"}

# An artefact's id and a budget.
PageLink = tuple[str, str]


@dataclass(frozen=True)
class Card:
    """An artefact and its result at each budget that was carried out."""

    entry: Published
    results: Sequence[Reproduction]


@dataclass(frozen=True)
class Part:
    """A part of a paper's page: headline claims and artefacts of which the same came."""

    name: str
    title: str
    rows: Sequence[Decided]
    cards: Sequence[Card]


def _part_of(verdict: str, demonstrates: bool) -> str:
    """Return the part of a verdict; what is not seen in a demonstration is among what is not seen."""
    if verdict == "reproduced":
        return "demonstrated" if demonstrates else "reproduced"
    return "open" if verdict in ("not seen here", "error") else verdict.replace(" ", "-")


@dataclass(frozen=True)
class Paper:
    """A paper with the artefacts that were carried out and the ids of the others."""

    key: str
    authors: str
    work: str
    cards: Sequence[Card]
    not_run: Sequence[str]

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{self.key}.html"

    @property
    def results(self) -> list[Reproduction]:
        """The results of all its artefacts."""
        return [result for card in self.cards for result in card.results]

    def parts(self, rows: Sequence[Decided]) -> list[Part]:
        """Return its headline claims and artefacts by what came of them at the largest budget; no empty part."""
        parts = []
        for name, title in PARTS.items():
            own = [row for row in rows if _part_of(row.outcome, row.demonstrates) == name]
            ended = [(card, card.results[-1]) for card in self.cards]
            cards = [card for card, last in ended if _part_of(last.verdict, last.demonstrates) == name]
            if own or cards:
                parts.append(Part(name, title, own, cards))
        return parts


def write_pages_of(out: Path, path: Path | None = None) -> list[Path]:
    """Write the pages of all results in a folder; return their paths, that of the front page first.

    The front page is `index.html` in the folder, or `path`; `PAPER.html` of each paper is beside it.

    Raises:
        ResultError: there are no results, one of them cannot be read, or the path is that of a paper's page.
    """
    results = list(stored(out))
    if not results:
        raise ResultError(f"{out} holds no results; normless reproduce --all --out {out} makes them.")
    front = path or out / "index.html"
    texts = render(results, _images(results, out), decided_in(out), front.name)
    front.parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        front.with_name(name).write_text(text, encoding="utf-8")
    return [front.with_name(name) for name in texts]


def papers_of(results: Sequence[Reproduction]) -> list[Paper]:
    """Return the papers with their results, in the order of the papers and the budgets."""
    by_id: dict[str, list[Reproduction]] = defaultdict(list)
    for result in results:
        by_id[result.id].append(result)
    entries = {**published(), **{result.id: result.published for result in results}}
    papers = []
    for key in dict.fromkeys([*PAPERS, *(entry.paper for entry in entries.values())]):
        own = [entry for entry in entries.values() if entry.paper == key]
        cards = [Card(entry, by_id[entry.id]) for entry in own if entry.id in by_id]
        authors, _, work = PAPERS.get(key, key).partition(", ")
        papers.append(Paper(key, authors, work, cards, [entry.id for entry in own if entry.id not in by_id]))
    return papers


def render(
    results: Sequence[Reproduction],
    images: Mapping[PageLink, str],
    headlines: Sequence[Decided] = (),
    front: str = "index.html",
) -> dict[str, str]:
    """Return the front page and the page of each paper by their file names.

    Args:
        images: the figures as elements, see `normless_lab.plots.inline_image`.

    Raises:
        ResultError: the front page has the name of a paper's.
    """
    papers = papers_of(results)
    if front in {paper.file for paper in papers if paper.cards}:
        raise ResultError(f"Expected another name for the front page than {front}, the page of a paper.")
    mentions = _mentions(papers)
    page = template("artefacts.html.j2", str(__package__))
    values = _values(results, papers, images) | {
        "front": front,
        # Without the artefacts that it mentions itself, which already have a link.
        "mentioned_by": {
            name: [other for other, others in mentions.items() if name in others and other not in named]
            for name, named in mentions.items()
        },
    }
    pages = {front: page.render(values, paper=None, rows=headlines, shown_at={}, linked=_linker(mentions, ""))}
    for paper in papers:
        if paper.cards:
            rows = [row for row in headlines if row.headline.paper == paper.key]
            # The first headline that shows a figure has it; later ones lead there.
            shown_at = {place: row.headline.anchor for row in reversed(rows) for place in _shown_by(row, images)}
            linked = _linker(mentions, paper.key)
            parts = paper.parts(rows)
            pages[paper.file] = page.render(values, paper=paper, parts=parts, shown_at=shown_at, linked=linked)
    return pages


def _values(
    results: Sequence[Reproduction], papers: Sequence[Paper], images: Mapping[PageLink, str]
) -> dict[str, Any]:
    """Return what every page has: the results, and the functions of the template."""
    return {
        "title": TITLE,
        "caution": CAUTION,
        "papers": papers,
        "all_results": results,
        "budgets": list(dict.fromkeys(result.budget for result in results)),
        "kinds": sorted({result.published.kind for result in results}),
        "facts": _about(results),
        "bases": BASES,
        "inks": VERDICT_INKS,
        "conclusions": list(VERDICTS),
        "silences": silences(),
        "silent_title": SILENT,
        "aspects": ASPECTS,
        "colours": css_variables() | {f"verdict-{name.replace(' ', '-')}": ink for name, ink in VERDICT_INKS.items()},
        "images": images,
        "caption_of": caption_of,
        "compared": compared,
        "summary_of": summary_of,
        "why_of": why_of,
        "decided_by": decided_by,
        "finding_of": finding_of,
        "numbers_of": lambda check: [(spoken(name), text_of(value)) for name, value in left_of(check).items()],
        "table_of": table_of,
        "facts_of": fact_texts,
        "setup_of": _setup,
        "provenance_of": _provenance,
        "shared_runs": _shared_runs(results),
        "shown_by": lambda row: _shown_by(row, images),
        "verdicts": lambda own, budget, basis=None: Counter(
            result.verdict for result in own if result.budget == budget and basis in (None, result.basis)
        ),
    }


def _shown_by(row: Decided, images: Mapping[PageLink, str]) -> list[PageLink]:
    """Return the place of the figure of a headline; none if its results have no figure."""
    return [place for place in row.places if place in images][:1]


def finding_of(results: Sequence[Reproduction]) -> str:
    """Return the verdicts in words, a sentence per budget."""
    sentences = []
    for budget in dict.fromkeys(result.budget for result in results):
        own = [result for result in results if result.budget == budget]
        sentences.append(f"Of {len(own)} artefacts at the {budget} budget: {counted(by_verdict(own))}.")
    return " ".join(sentences)


def caption_of(result: Reproduction) -> str:
    """Return what the figure shows: model and data, the axes, and the names of what is drawn."""
    parts = [f"{result.published.title}, at the {result.budget} budget.", result.figure]
    names = [name for name in ("model", "network", "data") if name in result.setup]
    return " ".join(
        filter(None, [*parts, *(f"{name.capitalize()}: {text_of(result.setup[name])}." for name in names)])
    )


def _images(results: Sequence[Reproduction], out: Path) -> dict[PageLink, Markup]:
    """Return the stored figures as elements of a page."""
    images: dict[PageLink, Markup] = {}
    for result in results:
        path = folder_of(out, result.id, result.budget) / FIGURE
        if path.exists():
            words = f"{result.published.title}. {result.figure}" if result.figure else result.published.title
            images[result.id, result.budget] = inline_image(path.read_text(encoding="utf-8"), words)
    return images


def _setup(result: Reproduction) -> list[tuple[str, str]]:
    asked = {_ASKED.get(name, name): value for name, value in result.asked.items()}
    return fact_texts(result.setup) + fact_texts(asked)


def _provenance(result: Reproduction) -> list[tuple[str, str]]:
    cost = {"training runs": str(len(result.runs))} if result.runs else {"took": f"{result.seconds:.3g} s"}
    return fact_texts({**result.provenance, **cost})


def _about(results: Sequence[Reproduction]) -> list[tuple[str, str]]:
    """Return how many artefacts there are, and when and where they were measured."""
    dates = sorted(result.provenance["date"] for result in results if "date" in result.provenance)
    machines = sorted({result.provenance["machine"] for result in results if "machine" in result.provenance})
    facts = {
        "artefacts": f"{len({result.id for result in results})} of {len(published())} carried out",
        "measured": f"from {dates[0]} to {dates[-1]} UTC" if dates else "at an unknown time",
        "machines": "; ".join(machines),
        "page by": f"normless {__version__}",
    }
    return [(name, value) for name, value in facts.items() if value]


def _shared_runs(results: Sequence[Reproduction]) -> dict[PageLink, list[str]]:
    """Return the ids of other artefacts that use the same training runs, by artefact and budget."""
    shared: dict[PageLink, list[str]] = {}
    for result in results:
        runs = set(result.runs)
        others = (other.id for other in results if other.id != result.id and not runs.isdisjoint(other.runs))
        shared[result.id, result.budget] = list(dict.fromkeys(others))
    return shared


def _mentions(papers: Sequence[Paper]) -> dict[str, list[str]]:
    """Return the ids of other artefacts in the texts of each artefact."""
    cards = [card for paper in papers for card in paper.cards]
    pattern = _ids([card.entry.id for card in cards])
    mentions = {}
    for card in cards:
        entry = card.entry
        texts = [entry.title, entry.claim, entry.note, *(value for _, value in fact_texts(entry.setup))]
        texts += [text for result in card.results for text in result.remarks]
        named = dict.fromkeys(match for text in texts for match in pattern.findall(text))
        mentions[entry.id] = [name for name in named if name != entry.id]
    return mentions


def _ids(known: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for ids in a text, the longest first, so that figure-10 is not read as figure-1."""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    return re.compile(rf"(?<![\w/-])(?:{names})(?![\w-])" if names else r"(?!)")


def _linker(known: Iterable[str], paper: str) -> Callable[[str], Markup]:
    """Return a function from text to markup in which the ids of artefacts link to them, from the page of a paper."""
    pattern = _ids(list(known))

    def link(match: re.Match[str]) -> str:
        key = match[0].partition("/")[0]
        return f'<a href="{"" if key == paper else f"{key}.html"}#{match[0]}">{match[0]}</a>'

    return lambda text: Markup(pattern.sub(link, str(escape(text))))
