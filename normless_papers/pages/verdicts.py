"""The verdicts on all artefacts, with their reasons, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from normless_papers.claims import BASES, CONCLUSIONS, CheckAspect
from normless_papers.pages.tables import (
    NOTHING,
    as_text,
    counted,
    deciding_of,
    effect_of,
    found_by,
    heading_of,
    row_of,
)
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction

VERDICTS = (*CONCLUSIONS, "error")
NOT_RUN = "not run"
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


def verdicts_page(results: Iterable[Reproduction]) -> str:
    """Return the page of the last result of each artefact."""
    last = {result.id: result for result in results}
    rows = [_row(name, last.get(name)) for name in dict.fromkeys([*published(), *last])]
    lines = [_INTRODUCTION, *_counts(list(last.values())), "", *heading_of(_COLUMNS), *rows, ""]
    return "\n".join(lines)


def why_of(result: Reproduction) -> str:
    """Return the checks that decide the verdict, and what lies beyond it, in words."""
    if result.error:
        return result.error
    found = _found(result, "shape" if result.shape else "number")
    return found if result.beyond is None else f"{found} Beyond it: {_found(result, 'beyond')}"


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
    return row_of([name, result.basis, result.budget, verdict, number, as_text(why_of(result))])
