"""Numbers and tables of results as they are to be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from normless_lab.plots import Column, Table
from normless_papers.results.reproduction import Reproduction, plain
from normless_papers.results.storage import TABLE

# Rows that are shown; the file has all.
MOST_ROWS = 40
NOTHING = "–"
_PUBLISHED, _MEASURED = "_published", "_measured"


def text_of(value: Any, *, as_printed: bool = False) -> str:
    """A cell or a setting: numbers to four digits (or as printed), nothing as a dash, nested values on one line."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}" if as_printed else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(one, as_printed=as_printed)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(one, as_printed=as_printed) for one in value)
    return str(value)


def fact_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as (name, value) in words; settings that are None or an empty table are left out."""
    named = {name: value for name, value in values.items() if value is not None and value != {}}
    return [(spoken(name), text_of(value, as_printed=True)) for name, value in named.items()]


def spoken(name: str) -> str:
    """The name of a column or setting as words."""
    return name.replace("_", " ")


def table_of(one: Reproduction, most: int = MOST_ROWS) -> tuple[Table | None, str]:
    """Published beside measured, and a sentence on the rows that are left out, empty if all are there.

    The two columns of a quantity are neighbours; columns without any value are left out.
    """
    whole = one.beside.dropna(axis="columns", how="all")
    if whole.empty:
        return None, ""
    headings = _headings(list(map(str, whole.columns)))
    columns = [Column(heading, numeric=_is_numeric(whole[name])) for name, heading in headings.items()]
    shown, cells = whole[list(headings)].head(most), []
    for name in headings:
        as_printed = name.endswith(_PUBLISHED) or name in one.on
        texts = [text_of(_scalar(value), as_printed=as_printed) for value in shown[name]]
        # The names of single quantities are written as those of columns are.
        cells.append([spoken(text) for text in texts] if name == "quantity" else texts)
    caption = "Published beside measured" if one.published.rows and one.on else "Measured"
    left = len(whole) - len(shown)
    said = f"{left} more rows stand in {TABLE} of artefacts/{one.id}/{one.budget}." if left else ""
    return Table(caption, columns, list(map(list, zip(*cells, strict=True))), row_headers=max(len(one.on), 1)), said


def _headings(names: list[str]) -> dict[str, str]:
    """By name of the column, where each measured one follows the published one of the same quantity."""
    headings: dict[str, str] = {}
    for name in names:
        quantity = name.removesuffix(_PUBLISHED)
        if name != quantity and f"{quantity}{_MEASURED}" in names:
            headings[name] = f"{spoken(quantity)}, published"
            headings[f"{quantity}{_MEASURED}"] = f"{spoken(quantity)}, measured"
        headings.setdefault(name, spoken(name))
    return headings


def is_published(heading: str) -> bool:
    """Whether a column of `table_of` with this heading is what was published of a quantity that is also measured."""
    return heading.endswith(", published")


def _scalar(value: Any) -> Any:
    """A cell as Python's own number, text or list; None where there is nothing."""
    return float(value) if isinstance(value, float) and not math.isnan(value) else plain(value)


def _is_numeric(column: pd.Series[Any]) -> bool:
    cells = [cell for cell in map(_scalar, column) if cell is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)
