"""Tables of published and measured numbers in a terminal, which may be narrower than they are."""

from __future__ import annotations

from collections.abc import Sequence

from normless.cli import GAP, as_text, table
from normless.plots import Table
from normless_papers.formatting import NOTHING, is_published


def tabular(shown: Table, width: int) -> str:
    """The table as text; turned where its words have no room side by side.

    Turned, every row with a measured number is a column, and there are as many such tables below each other as the
    width asks for; rows that only are published are counted.
    """
    titles = [column.name for column in shown.columns]
    if _least_width(titles, shown.rows) <= width:
        right = tuple(place for place, column in enumerate(shown.columns) if column.numeric)
        return as_text(table(titles, shown.rows, right=right), width)
    measured = [row for row in shown.rows if _has_measured(titles, row, shown.row_headers)] or shown.rows
    names = titles[shown.row_headers :]
    widest = max(len(text) for row in measured for text in (_name(row, shown.row_headers), *row)) + GAP
    at_once = max(1, (width - max(map(len, names))) // widest)
    parts = [
        _turned(names, measured[start : start + at_once], shown.row_headers, width)
        for start in range(0, len(measured), at_once)
    ]
    left = len(shown.rows) - len(measured)
    return "\n\n".join([*parts, f"Published and not measured: {left} more."] if left else parts)


def _turned(names: Sequence[str], rows: Sequence[Sequence[str]], headers: int, width: int) -> str:
    """A line for every quantity that any of the rows has."""
    cells = zip(names, *(row[headers:] for row in rows), strict=True)
    lines = [line for line in cells if any(cell != NOTHING for cell in line[1:])]
    right = tuple(range(1, len(rows) + 1))
    return as_text(table(["", *(_name(row, headers) for row in rows)], lines, right=right), width)


def _name(row: Sequence[str], headers: int) -> str:
    return ", ".join(row[:headers])


def _has_measured(titles: Sequence[str], row: Sequence[str], headers: int) -> bool:
    """Whether a row has more than what names it and what is published."""
    cells = list(zip(titles, row, strict=True))[headers:]
    return any(cell != NOTHING and not is_published(title) for title, cell in cells)


def _least_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """With lines broken between words alone."""
    columns = zip(titles, *rows, strict=True)
    widths = [max(len(word) for word in " ".join(column).split()) for column in columns]
    return sum(widths) + GAP * (len(widths) - 1)
