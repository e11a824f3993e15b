"""The verdicts on all artefacts, with their reasons and the verdicts before, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from normless_papers.claims import BASES, CONCLUSIONS
from normless_papers.pages.tables import NOTHING, as_text, heading_of, row_of
from normless_papers.pages.wording import counted, deciding_of, effect_of, found_by
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction

VERDICTS = (*CONCLUSIONS, "error")
NOT_RUN = "not run"
_COLUMNS = ("artefact", "class", "budget", "verdict", "numbers", "before", "why")
_INTRODUCTION = """# Verdicts on all artefacts

<!-- Written by normless report --verdicts; do not edit. -->
Each artefact at the largest budget that was carried out. A *demonstration* has data or a network of another kind or
size than the paper, and decides nothing about it. "Numbers" is the verdict on the numbers that the paper prints, and
"before" the last verdict that was another, in the words of its time.
"""


def by_verdict(results: Iterable[Reproduction]) -> dict[str, list[bool]]:
    """Return, for each verdict that there is, whether each of its results is a demonstration."""
    listed = list(results)
    found = {name: [result.demonstrates for result in listed if result.verdict == name] for name in VERDICTS}
    return {name: demonstrations for name, demonstrations in found.items() if demonstrations}


def verdicts_page(results: Iterable[Reproduction], older: str = "") -> str:
    """Return the page of the last result of each artefact; `older` is the page as it was written before."""
    last = {result.id: result for result in results}
    before = _before(older)
    rows = [_row(name, last.get(name), before.get(name, ("", ""))) for name in dict.fromkeys([*published(), *last])]
    lines = [_INTRODUCTION, *_counts(list(last.values())), "", *heading_of(_COLUMNS), *rows, ""]
    return "\n".join(lines)


def why_of(result: Reproduction) -> str:
    """Return the checks that decide the verdict in words, and why a failed one does not contradict the paper."""
    if result.error:
        return result.error
    checks = [check for check in result.checks if check.of == ("shape" if result.shape else "number")]
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
    rows = [row_of([name, str(len(own)), counted(by_verdict(own)) or NOTHING]) for name, own in groups.items()]
    return [*heading_of(("class or paper", "carried out", "verdicts"), right=("carried out",)), *rows]


def _row(name: str, result: Reproduction | None, before: tuple[str, str]) -> str:
    """Return the row of an artefact; `before` has the verdict of the older page and the one before that."""
    verdict = NOT_RUN if result is None else result.verdict
    earlier = before[0] if before[0] not in ("", verdict) else before[1]
    if result is None:
        return row_of([name, "", "", verdict, "", earlier, ""])
    demonstration = ", a demonstration" if result.demonstrates and verdict == "reproduced" else ""
    number = result.number if result.number and result.shape else ""
    return row_of(
        [name, result.basis, result.budget, f"{verdict}{demonstration}", number, earlier, as_text(why_of(result))]
    )


def _before(older: str) -> dict[str, tuple[str, str]]:
    """Return the verdicts and the verdicts before by the artefacts of an older page."""
    cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in older.splitlines()]
    known = [row for row in cells if len(row) == len(_COLUMNS)]
    return {row[0]: (row[3].partition(",")[0], row[5]) for row in known}
