"""The verdicts on all artefacts, with their reasons, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill

from normless_papers.artefact import artefact_of
from normless_papers.claims import BASES, CONCLUSIONS, CheckAspect, Claim
from normless_papers.pages.headline import headlines
from normless_papers.pages.tables import (
    NOTHING,
    as_text,
    counted,
    deciding_of,
    effect_of,
    found_by,
    heading_of,
    plain_claim,
    row_of,
)
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction

VERDICTS = (*CONCLUSIONS, "error")
NOT_RUN = "not run"
WIDTH = 120
# A difference that needs more times the seeds than this is taken to be none.
MOST_SEEDS = 20
_COLUMNS = ("artefact", "class", "budget", "verdict", "numbers", "why")
_INTRODUCTION = """# Verdicts on all artefacts

<!-- Written by normless report --verdicts; do not edit. -->
Each artefact at the largest budget that was carried out. *Implemented*: our code agrees with a formula of the paper,
which no experiment can refute; these are counted apart. A *demonstration* has data or a network of another kind or
size than the paper, and decides nothing about it; all other measurements and trainings are at the paper's kind.
"Numbers" is the verdict on the numbers that the paper prints. *Beyond it* is what the text says beyond the claim of
the artefact, or outside the domain of its formula. Verdicts that changed with a check are in
[the overview](README.md#checks-that-were-changed-after-their-results).
"""


def by_verdict(results: Iterable[Reproduction]) -> dict[str, list[bool]]:
    """Return, for each verdict that there is, whether each of its results is a demonstration."""
    listed = list(results)
    found = {name: [result.demonstrates for result in listed if result.verdict == name] for name in VERDICTS}
    return {name: demonstrations for name, demonstrations in found.items() if demonstrations}


def summary_of(results: Iterable[Reproduction], papers: Sequence[str] = tuple(PAPERS)) -> str:
    """Return the counts of the artefacts of papers in one sentence, each by its last result."""
    last = {result.id: result for result in results if result.published.paper in papers}
    every = {name for name, entry in published().items() if entry.paper in papers} | last.keys()
    own = [result for result in last.values() if result.basis != "formula" and not result.demonstrates]
    shown = [result for result in last.values() if result.demonstrates]
    formulas = len(last) - len(own) - len(shown)
    ended = ", ".join(f"{len(found)} {name}" for name, found in by_verdict(own).items()) or "none"
    held = sum(result.verdict == "reproduced" for result in shown)
    return (
        f"Of {len(every)} artefacts {len(last)} were carried out: {len(own)} at the paper's own kind of data "
        f"and network ({ended}), {len(shown)} in demonstrations of another kind ({held} show the same, which says "
        f"nothing about the paper), and {formulas} as formulas beside our code."
    )


def verdicts_page(results: Iterable[Reproduction]) -> str:
    """Return the page of the last result of each artefact."""
    last = {result.id: result for result in results}
    rows = [_row(name, last.get(name)) for name in dict.fromkeys([*published(), *last])]
    summary = fill(summary_of(last.values()), WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = [_INTRODUCTION, summary, "", *_counts(list(last.values())), "", *heading_of(_COLUMNS), *rows, ""]
    return "\n".join(lines)


def why_of(result: Reproduction) -> str:
    """Return the checks that decide the verdict, and what lies beyond it, in words."""
    if result.error:
        return result.error
    found = _found(result, "shape" if result.shape else "number")
    return found if result.beyond is None else f"{found} Beyond it: {_found(result, 'beyond')}"


def decided_by(result: Reproduction) -> str:
    """Return what would decide an artefact that is not seen here: a larger budget, and more seeds; else nothing.

    An undecided comparison of means, with the half width h of its 95 % interval and the distance g of its difference
    from the bound, needs about (h / g)² times the seeds.
    """
    if result.verdict != "not seen here":
        return ""
    parts = []
    if result.demonstrates:
        budget, cost = _at_the_papers_kind(result)
        parts.append(f"`normless reproduce {result.id} --budget {budget}`{cost}")
    shape = [check for check in result.checks if check.of == "shape" and " Not asked" not in check.claim]
    # More seeds take no failed check back.
    undecided = [] if any(check.verdict == "fails" for check in shape) else shape
    for check in undecided:
        if check.verdict == "inconclusive" and (factor := _more_seeds(check)) <= MOST_SEEDS:
            parts.append(f"about {math.ceil(factor)} times the seeds for: {plain_claim(check)}")
            break
    return f"To decide it: {'; '.join(parts).removesuffix('.')}." if parts else ""


def _at_the_papers_kind(result: Reproduction) -> tuple[str, str]:
    """Return the smallest budget with the paper's kind of data and network, and what it takes, if that is known."""
    settings = artefact_of(result.id).settings if result.id in published() else {}
    if result.budget == "gpu" or settings.get("gpu") == settings.get("small"):
        return "paper", ""
    minutes = [head.minutes for head in headlines() if result.id in head.checks and head.minutes is not None]
    return "gpu", f" ({minutes[0]} minutes of an H100)" if minutes else ""


def _more_seeds(undecided: Claim) -> float:
    """Return the factor of the seeds that would decide a comparison of means; NaN of a check of another kind."""
    numbers = undecided.numbers
    if "needed_difference" in numbers:
        first, second, *_ = numbers.values()
        gap = first - second - numbers["needed_difference"]
    elif "low" in numbers:
        gap = min(numbers["measured"] - numbers["low"], numbers["high"] - numbers["measured"])
    else:
        bound = numbers.get("needed", numbers.get("needed_below", math.nan))
        gap = numbers.get("accuracy", math.nan) - bound
    return (numbers.get("half_width", math.nan) / gap) ** 2 if gap else math.nan


def _found(result: Reproduction, aspect: CheckAspect) -> str:
    """Return how many checks of an aspect hold, the one that decides, and why a failed one does not contradict."""
    checks = [check for check in result.checks if check.of == aspect]
    found, deciding = found_by(checks), deciding_of(checks)
    if deciding is None or deciding.verdict == "holds":
        return found
    excused = f" It contradicts nothing, since {result.obstacle}." if result.obstacle else ""
    return f"{found.removesuffix('.')} ({effect_of(deciding)}).{excused if deciding.verdict == 'fails' else ''}"


def _counts(results: Sequence[Reproduction]) -> list[str]:
    """Return the counts of all results, of each class and of each paper."""
    groups: Mapping[str, list[Reproduction]] = {
        "all": list(results),
        **{basis: [own for own in results if own.basis == basis] for basis in BASES},
        **{key: [own for own in results if own.published.paper == key] for key in PAPERS},
    }
    rows = [row_of([name, *_count(own)]) for name, own in groups.items()]
    names = ("class or paper", "carried out", "at the paper's kind", "verdicts")
    return [*heading_of(names, right=names[1:3]), *rows]


def _count(results: Sequence[Reproduction]) -> tuple[str, str, str]:
    """Return the numbers of results, and of measurements and trainings at the paper's kind; and of verdicts."""
    of_kind = sum(result.basis != "formula" and result.distance.of_same_kind for result in results)
    return str(len(results)), str(of_kind), counted(by_verdict(results)) or NOTHING


def _row(name: str, result: Reproduction | None) -> str:
    """Return the row of an artefact."""
    if result is None:
        return row_of([name, "", "", NOT_RUN, "", ""])
    demonstration = ", a demonstration" if result.demonstrates and result.verdict == "reproduced" else ""
    beyond = f"; beyond it {result.beyond}" if result.beyond else ""
    number = result.number if result.number and result.shape else ""
    verdict = f"{result.verdict}{demonstration}{beyond}"
    why = " ".join(filter(None, [why_of(result), decided_by(result)]))
    return row_of([name, result.basis, result.budget, verdict, number, as_text(why)])
