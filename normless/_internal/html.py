"""Short HTML tables, by which notebooks show results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 40


def html_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a caption and a table with escaped cells, of many rows the first `MOST_ROWS`."""
    listed = [tuple(map(str, row)) for row in rows]
    if len(listed) > MOST_ROWS:
        listed[MOST_ROWS:] = [(f"… {len(listed) - MOST_ROWS} more",)]
    lines = [*([_row("th", titles)] if titles else []), *(_row("td", row) for row in listed)]
    return f"<p>{escape(caption)}</p>" + (f"<table>{''.join(lines)}</table>" if listed else "")


def _row(kind: str, cells: Sequence[str]) -> str:
    # Notebooks align cells to the right.
    opening = f'<{kind} style="text-align: left">'
    return f"<tr>{''.join(f'{opening}{escape(cell)}</{kind}>' for cell in cells)}</tr>"
