"""Results of artefacts as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from normless.cli import GAP, as_text, table, terminal_width
from normless_lab.plots import VERDICT_INKS, Table
from normless_papers.claims import BASES
from normless_papers.pages.tables import NOTHING, is_published, spoken, table_of, text_of
from normless_papers.published import Published
from normless_papers.results.reproduction import Reproduction
from normless_papers.results.storage import PICTURE, TABLE

# Rows of a result that are printed; the file has all.
ROWS = 16


def in_full(one: Reproduction, folder: Path) -> str:
    """Title and verdict, published and measured numbers, the checks with their numbers, and where the files are."""
    entry, width = one.published, terminal_width()
    lines = [f"{one.id} ({entry.where}) at the {one.budget} budget: {one.verdict}, {one.seconds:.1f} s", entry.title]
    lines += [_wrapped(f"claim: {entry.claim}", width, "  ")]
    if one.error:
        lines.append(_wrapped(f"{VERDICT_INKS['error'].marker} {one.error}", width, "  "))
    shown, left_out = table_of(one, ROWS)
    if shown is not None:
        lines += ["", tabular(shown, width)]
        lines += [left_out] if left_out else []
    lines += [""] if one.checks else []
    for check in one.checks:
        lines.append(_wrapped(f"{VERDICT_INKS[check.verdict].marker} {check.claim}", width, "  "))
        numbers = " · ".join(f"{spoken(name)} {text_of(value)}" for name, value in check.numbers.items())
        lines += [_wrapped(f"  {numbers}", width, "  ")] if numbers else []
    lines += [_wrapped(f"note: {remark}", width, "  ") for remark in one.remarks]
    named = [name for name in (PICTURE, TABLE) if (folder / name).exists()]
    return "\n".join(["", *lines, *(f"wrote {folder / name}" for name in named)]).lstrip("\n")


def summary(results: Sequence[Reproduction]) -> str:
    """A line for each result, and how many there are of each verdict, by what they rest on too."""
    # The first claim that has the verdict of the whole, where that is not that all hold.
    claims = [next((c.claim for c in one.checks if c.verdict == one.verdict != "holds"), "") for one in results]
    cells = zip(results, claims, strict=True)
    rows = [(one.id, one.verdict, f"{one.seconds:.1f}", shortened(one.error) or claim) for one, claim in cells]
    text = as_text(table(("artefact", "verdict", "seconds", ""), rows, right=(2,)))
    lines = [f"{len(results)} artefacts in {sum(one.seconds for one in results):.0f} s: {_counted(results)}"]
    classes = {basis: [one for one in results if one.basis == basis] for basis in BASES}
    lines += [f"  {basis}: {_counted(members)}" for basis, members in classes.items() if members]
    return "\n".join([text, "", *lines])


def listing(rows: Sequence[tuple[Published, Mapping[str, str]]]) -> str:
    """Id, kind, the state at each budget, and title."""
    budgets = list(rows[0][1]) if rows else []
    cells = [(one.id, one.kind, *states.values(), one.title) for one, states in rows]
    return as_text(table(("artefact", "kind", *budgets, "title"), cells))


def _counted(results: Sequence[Reproduction]) -> str:
    """How many of each verdict: 3 holds, 1 fails."""
    counts = Counter[str](one.verdict for one in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICT_INKS if counts[verdict])


def shortened(error: str) -> str:
    """The beginning of an error that is printed in full elsewhere."""
    return textwrap.shorten(error, 100, placeholder=" …")


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, drop_whitespace=True)


def tabular(shown: Table, width: int) -> str:
    """The table as text; turned where its words have no room side by side.

    Turned, every row with a measured number is a column, and there are as many such tables below each other as the
    width asks for; rows that only are published are counted.
    """
    titles, headers = [column.name for column in shown.columns], shown.row_headers
    # With lines broken between words alone.
    widths = [max(map(len, " ".join(column).split())) for column in zip(titles, *shown.rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        right = tuple(place for place, column in enumerate(shown.columns) if column.numeric)
        return as_text(table(titles, shown.rows, right=right), width)
    # More than what names a row and what is published.
    own = [place for place, title in enumerate(titles) if place >= headers and not is_published(title)]
    measured = [row for row in shown.rows if any(row[place] != NOTHING for place in own)] or shown.rows
    # The name of each row, and then its numbers.
    turned = [(", ".join(row[:headers]), *row[headers:]) for row in measured]
    names = ["", *titles[headers:]]
    widest = max(len(text) for row, named in zip(measured, turned, strict=True) for text in (named[0], *row)) + GAP
    at_once = max(1, (width - max(map(len, names))) // widest)
    parts = []
    for start in range(0, len(turned), at_once):
        heading, *lines = zip(names, *turned[start : start + at_once], strict=True)
        # A line for every quantity that any of the rows has.
        lines = [line for line in lines if any(cell != NOTHING for cell in line[1:])]
        parts.append(as_text(table(heading, lines, right=tuple(range(1, len(heading)))), width))
    left = len(shown.rows) - len(measured)
    return "\n\n".join([*parts, f"Published and not measured: {left} more."] if left else parts)
