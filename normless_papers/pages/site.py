"""The page of a folder of results: verdicts by paper, and every artefact with published and measured numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normless._version import __version__
from normless_lab.plots import (
    VERDICT_INKS,
    ArtefactsPage,
    Card,
    CheckedClaim,
    PaperGroup,
    Result,
    inline_svg_text,
    write_artefact_pages,
)
from normless_papers.pages.front_page import headline_rows
from normless_papers.pages.tables import fact_texts, spoken, table_of, text_of
from normless_papers.pages.wording import compared, left_of
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction, ResultError
from normless_papers.results.storage import FIGURE, folder_of, stored

TITLE = "Five papers on normalization, carried out"
CAUTION = (
    "Each artefact of the papers – table, figure, theorem, algorithm, guideline – is measured, and its claim is "
    "checked by numbers. A verdict holds for the budget at which it was reached, not for larger ones: smoke is some "
    "seconds on tiny data and shows at most a direction; paper is the published setup. A failing claim is reported "
    "as failing, and inconclusive means that the numbers cannot decide. Checks of formulas, measurements and "
    "training runs are counted separately."
)
# What the page calls that which was asked for.
ASKED = {"data": "data asked for", "seed": "first seed", "settings": "settings of the budget"}


def write_page_of(out: Path, path: Path | None = None) -> Path:
    """Write the pages of all results in a folder, the front page to `index.html` in it or to another path, its own.

    Raises:
        ResultError: there are no results, one of them cannot be read, or the path is that of a paper's page.
    """
    return write_pages_of(out, path)[0]


def write_pages_of(out: Path, path: Path | None = None) -> list[Path]:
    """As `write_page_of`; returns the front page and, beside it, `PAPER.html` of each paper."""
    results = list(stored(out))
    if not results:
        raise ResultError(f"{out} holds no results; normless reproduce --all --out {out} makes them.")
    page = replace(page_of(results, out), headlines=headline_rows(out))
    try:
        return write_artefact_pages(page, path or out / "index.html")
    except ValueError as error:
        raise ResultError(str(error)) from error


def page_of(results: Sequence[Reproduction], out: Path) -> ArtefactsPage:
    """The page of results, in the order of the papers and the budgets, of a folder with their figures."""
    by_id: dict[str, list[Result]] = defaultdict(list)
    for place, one in enumerate(results):
        runs = set(one.runs)
        same = dict.fromkeys(two.id for two in results if two.id != one.id and not runs.isdisjoint(two.runs))
        by_id[one.id].append(_result(one, list(same), _figure(one, out, f"f{place}")))
    groups = []
    others = {one.id: one.published for one in results if one.entry}
    papers = {**PAPERS, **{entry.paper: entry.paper for entry in others.values()}}
    for key, citation in papers.items():
        entries = [entry for entry in [*published().values(), *others.values()] if entry.paper == key]
        cards = [
            Card(
                id=entry.id,
                kind=entry.kind,
                title=entry.title,
                claim=entry.claim,
                where=entry.where,
                note=entry.note,
                setup=fact_texts(entry.setup),
                results=by_id[entry.id],
            )
            for entry in entries
            if entry.id in by_id
        ]
        not_run = [entry.id for entry in entries if entry.id not in by_id]
        authors, _, work = citation.partition(", ")
        own = [one for one in results if one.published.paper == key]
        groups.append(PaperGroup(key, authors, work, cards, not_run, _finding(own)))
    return ArtefactsPage(TITLE, _finding(results), CAUTION, groups, _facts(results))


def _result(one: Reproduction, same_runs: Sequence[str], svg: str) -> Result:
    table, left_out = table_of(one)
    effort = {"took": f"{one.seconds:.3g} s"} | ({"training runs": str(len(one.runs))} if one.runs else {})
    return Result(
        budget=one.budget,
        verdict=one.verdict,
        basis=one.basis,
        error=one.error,
        checks=[
            CheckedClaim(
                check.claim,
                check.verdict,
                [(spoken(name), text_of(value)) for name, value in left_of(check).items()],
                compared(check),
            )
            for check in one.checks
        ],
        table=table,
        left_out=left_out,
        svg=svg,
        caption=_caption(one),
        remarks=one.remarks,
        setup=fact_texts(one.setup) + fact_texts({ASKED.get(name, name): value for name, value in one.asked.items()}),
        provenance=fact_texts({**one.provenance, **effort}),
        same_runs=same_runs,
    )


def _caption(one: Reproduction) -> str:
    """What the figure shows, as far as the result says: model and data, the axes, and what is drawn by name."""
    said = [f"{one.published.title}, at the {one.budget} budget.", one.figure]
    said += [
        f"{name.capitalize()}: {text_of(one.setup[name])}."
        for name in ("model", "network", "data")
        if name in one.setup
    ]
    return " ".join(filter(None, said))


def _figure(one: Reproduction, out: Path, name: str) -> str:
    """The stored figure as an element of the page, whose ids begin with a name; empty if there is none."""
    path = folder_of(out, one.id, one.budget) / FIGURE
    if not path.exists():
        return ""
    said = f"{one.published.title}. {one.figure}" if one.figure else one.published.title
    try:
        return inline_svg_text(path.read_text(encoding="utf-8"), name=name, description=said)
    except ValueError as error:
        raise ResultError(f"{path} cannot be read: {error} Remove it, or carry {one.id} out again.") from error


def _finding(results: Sequence[Reproduction]) -> str:
    """The verdicts in words, a sentence per budget."""
    sentences = []
    for budget in dict.fromkeys(one.budget for one in results):
        counts = Counter[str](one.verdict for one in results if one.budget == budget)
        words = {"holds": "hold", "fails": "fail", "inconclusive": "are inconclusive", "error": "ended in an error"}
        said = ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in VERDICT_INKS if counts[verdict])
        sentences.append(f"Of {counts.total()} artefacts at the {budget} budget, {said}.")
    return " ".join(sentences)


def _facts(results: Sequence[Reproduction]) -> list[tuple[str, str]]:
    """How many artefacts there are, when and where they were measured, how long it took."""
    dates = sorted(one.provenance["date"] for one in results if "date" in one.provenance)
    machines = sorted({one.provenance["machine"] for one in results if "machine" in one.provenance})
    facts = {
        "artefacts": f"{len({one.id for one in results})} of {len(published())} carried out",
        "measured": f"from {dates[0]} to {dates[-1]} UTC" if dates else "at an unknown time",
        "machines": "; ".join(machines),
        "in all": f"{sum(one.seconds for one in results):.0f} s",
        "page by": f"normless {__version__}",
    }
    return [(name, value) for name, value in facts.items() if value]
