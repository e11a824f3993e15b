"""Numbers and tables of results as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from normless_lab.plots import Column, Table
from normless_papers.results.reproduction import Reproduction, plain
from normless_papers.results.storage import TABLE

# The number of rows shown; the file has all.
MOST_ROWS = 40
NOTHING = "–"
# The columns of the distance of a set-up from the paper's; see `normless_papers.distance`.
ASPECTS = ("data", "network", "length", "seeds")
_PUBLISHED, _MEASURED = "_published", "_measured"


def text_of(value: Any, *, as_printed: bool = False) -> str:
    """Return a cell or setting as text: numbers to four digits or as printed, a dash for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}" if as_printed else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(item, as_printed=as_printed)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(item, as_printed=as_printed) for item in value)
    return str(value)


def fact_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings as (name, value) in words, without those that are None or an empty table."""
    named = {name: value for name, value in values.items() if value is not None and value != {}}
    return [(spoken(name), text_of(value, as_printed=True)) for name, value in named.items()]


def spoken(name: str) -> str:
    """Return the name of a column or setting as words."""
    return name.replace("_", " ")


def table_of(result: Reproduction, most: int = MOST_ROWS) -> tuple[Table | None, str]:
    """Return published beside measured numbers, and a sentence on omitted rows, empty if there are none.

    The two columns of a quantity are neighbours; columns without values are omitted.
    """
    whole = result.beside.dropna(axis="columns", how="all")
    if whole.empty:
        return None, ""
    headings = _headings(list(map(str, whole.columns)))
    columns = [Column(heading, numeric=_is_numeric(whole[name])) for name, heading in headings.items()]
    shown, cells = whole[list(headings)].head(most), []
    for name in headings:
        as_printed = name.endswith(_PUBLISHED) or name in result.on
        texts = [text_of(_scalar(value), as_printed=as_printed) for value in shown[name]]
        # Names of single quantities are words, as those of columns.
        cells.append([spoken(text) for text in texts] if name == "quantity" else texts)
    caption = "Published beside measured" if result.published.rows and result.on else "Measured"
    left = len(whole) - len(shown)
    omitted = f"{left} more rows are in {TABLE} of artefacts/{result.id}/{result.budget}." if left else ""
    return Table(
        caption, columns, list(map(list, zip(*cells, strict=True))), row_headers=max(len(result.on), 1)
    ), omitted


def _headings(names: list[str]) -> dict[str, str]:
    """Return the headings by column, each measured column after the published column of the same quantity."""
    headings: dict[str, str] = {}
    for name in names:
        quantity = name.removesuffix(_PUBLISHED)
        if name != quantity and f"{quantity}{_MEASURED}" in names:
            headings[name] = f"{spoken(quantity)}, published"
            headings[f"{quantity}{_MEASURED}"] = f"{spoken(quantity)}, measured"
        headings.setdefault(name, spoken(name))
    return headings


def is_published(heading: str) -> bool:
    """Return whether a heading of `table_of` is that of the published numbers of a measured quantity."""
    return heading.endswith(", published")


def _scalar(value: Any) -> Any:
    """Return a cell as a number, text or list of Python; None if it is missing."""
    return float(value) if isinstance(value, float) and not math.isnan(value) else plain(value)


def _is_numeric(column: pd.Series[Any]) -> bool:
    cells = [cell for cell in map(_scalar, column) if cell is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)


def heading_of(names: Sequence[str], right: Sequence[str] = ()) -> list[str]:
    """Return the heading of a table in Markdown; columns named in `right` are right-aligned."""
    return [row_of(names), row_of(["---:" if name in right else "---" for name in names])]


def as_text(text: str) -> str:
    """Return a text of a result, which is data, for Markdown: in one line, without HTML, links and images."""
    return re.sub(r"\](?=[(\[:])", r"]\\", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split())))


def row_of(cells: Sequence[str]) -> str:
    """Return a row of a table in Markdown, in which a bar would end a cell."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
