"""Results of artefacts as text for a terminal, and the progress of some artefacts on standard error."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from normless.cli import GAP, as_text, table, terminal_width
from normless_lab.plots import VERDICT_INKS, Table
from normless_lab.sweeps import SweepProgress
from normless_papers.claims import BASES
from normless_papers.pages.tables import (
    ASPECTS,
    NOTHING,
    counted,
    deciding_of,
    is_published,
    spoken,
    table_of,
    text_of,
)
from normless_papers.pages.verdicts import by_verdict
from normless_papers.published import Published
from normless_papers.results.reproduction import PICTURE, TABLE, Reproduction

if TYPE_CHECKING:
    from normless_papers.planning.plan import Step


# The number of printed rows of a result; the file has all.
ROWS = 16


def in_full(result: Reproduction, folder: Path) -> str:
    """Return title and verdict, published and measured numbers, checks with their numbers, and the files."""
    entry, width = result.published, terminal_width()
    verdict = f"{result.verdicts}, {result.seconds:.1f} s"
    lines = [f"{result.id} ({entry.where}) at the {result.budget} budget: {verdict}", entry.title]
    lines += [_wrapped(f"claim: {entry.claim}", width, "  ")]
    if result.error:
        lines.append(_wrapped(f"{VERDICT_INKS['error'].marker} {result.error}", width, "  "))
    shown, omitted = table_of(result, ROWS)
    if shown is not None:
        lines += ["", tabular(shown, width)]
        lines += [omitted] if omitted else []
    lines += [""] if result.checks else []
    for check in result.checks:
        lines.append(_wrapped(f"{VERDICT_INKS[check.verdict].marker} {check.claim}", width, "  "))
        numbers = " · ".join(f"{spoken(name)} {text_of(value)}" for name, value in check.numbers.items())
        lines += [_wrapped(f"  {numbers}", width, "  ")] if numbers else []
    distance = zip(ASPECTS, result.distance.columns, strict=True)
    texts = "; ".join(f"{name}: {text}" for name, text in distance)
    lines.append(_wrapped(f"distance from the paper: {texts}", width, "  "))
    lines += [_wrapped(f"note: {remark}", width, "  ") for remark in result.remarks]
    written = [folder / name for name in (PICTURE, TABLE) if (folder / name).exists()]
    return "\n".join([*lines, *(f"wrote {path}" for path in written)])


def summary(results: Sequence[Reproduction]) -> str:
    """Return a line for each result, and the number of each verdict, in all and by what the checks rest on."""
    rows = []
    for result in results:
        deciding = deciding_of(result.checks)
        claim = deciding.claim if deciding and deciding.verdict != "holds" else ""
        reason = shortened(result.error) or claim
        rows.append((result.id, result.verdict, f"{result.seconds:.1f}", reason))
    seconds = sum(result.seconds for result in results)
    lines = [f"{len(results)} artefacts in {seconds:.0f} s: {counted(by_verdict(results))}"]
    for basis in BASES:
        own = [result for result in results if result.basis == basis]
        lines += [f"  {basis}: {counted(by_verdict(own))}"] if own else []
    return "\n".join([as_text(table(("artefact", "verdict", "seconds", ""), rows, right=(2,))), "", *lines])


def plan_text(steps: Sequence[Step], minutes: float) -> str:
    """Return what is left, in the order of the plan, with the minutes of each step and of all."""
    if not steps:
        return "Nothing is left at this budget."
    rows = [(f"{step.seconds / 60:.0f}", ", ".join(step.artefacts), "; ".join(step.claims)) for step in steps]
    total = sum(step.seconds for step in steps) / 60
    pieces = "" if math.isnan(total) else f", {math.ceil(total / minutes)} pieces of {minutes:g}"
    first = f"Left: {sum(len(step.claims) for step in steps)} claims, expected to take {total:.0f} minutes{pieces}."
    return "\n".join([first, as_text(table(("minutes", "next", "decides"), rows, right=(0,)))])


def listing(rows: Sequence[tuple[Published, Mapping[str, str]]]) -> str:
    """Return id, kind, the state at each budget, and title of each artefact."""
    budgets = list(rows[0][1]) if rows else []
    cells = [(entry.id, entry.kind, *states.values(), entry.title) for entry, states in rows]
    return as_text(table(("artefact", "kind", *budgets, "title"), cells))


def shortened(error: str) -> str:
    """Return the beginning of an error that is printed in full elsewhere."""
    return textwrap.shorten(error, 100, placeholder=" …")


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, drop_whitespace=True)


def tabular(shown: Table, width: int) -> str:
    """Return the table as text, transposed if its columns do not fit side by side.

    A transposed table has a column for every row with a measured number, in several parts if the width requires it,
    and a count of the rows that are only published.
    """
    titles, headers = [column.name for column in shown.columns], shown.row_headers
    # Lines break only between words.
    widths = [max(map(len, " ".join(column).split())) for column in zip(titles, *shown.rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        right = tuple(place for place, column in enumerate(shown.columns) if column.numeric)
        return as_text(table(titles, shown.rows, right=right), width)
    # The columns of measured numbers.
    own = [place for place, title in enumerate(titles) if place >= headers and not is_published(title)]
    measured = [row for row in shown.rows if any(row[place] != NOTHING for place in own)] or shown.rows
    turned = [(", ".join(row[:headers]), *row[headers:]) for row in measured]
    names = ["", *titles[headers:]]
    widest = max(len(text) for row, named in zip(measured, turned, strict=True) for text in (named[0], *row)) + GAP
    at_once = max(1, (width - max(map(len, names))) // widest)
    parts = []
    for start in range(0, len(turned), at_once):
        heading, *lines = zip(names, *turned[start : start + at_once], strict=True)
        # Without quantities that no row has.
        lines = [line for line in lines if any(cell != NOTHING for cell in line[1:])]
        parts.append(as_text(table(heading, lines, right=tuple(range(1, len(heading)))), width))
    left = len(shown.rows) - len(measured)
    return "\n\n".join([*parts, f"Published and not measured: {left} more."] if left else parts)


class ReproductionProgress(SweepProgress):
    """Reports the start and the end of artefacts, and their training runs as those of a sweep."""

    def __init__(self, artefacts: int, console: Console | None = None) -> None:
        super().__init__("", console)
        self._artefacts, self._place = artefacts, 0

    def begin(self, name: str) -> None:
        """Report that an artefact begins."""
        self._place += 1
        self.start(f"[{self._place}/{self._artefacts}] {name}")

    def end(self, result: Reproduction) -> None:
        """Report the verdict on an artefact."""
        detail = f": {shortened(result.error)}" if result.error else ""
        mark = VERDICT_INKS[result.verdict].marker
        self.print(f"{mark} {result.verdict}, {result.seconds:.1f} s{detail}")
