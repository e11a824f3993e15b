"""Numbers and tables of results as they are to be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from normless.plots import Column, Table
from normless_papers.reproduction import Reproduction
from normless_papers.serialization import plain
from normless_papers.storage import TABLE

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
    """Settings as (name, value) without underscores in the names; settings that are None are left out."""
    return [
        (spoken(name), text_of(value, as_printed=True))
        for name, value in values.items()
        if value is not None and value != {}
    ]


def spoken(name: str) -> str:
    """The name of a column or setting as words."""
    return name.replace("_", " ")


def table_of(one: Reproduction, most: int = MOST_ROWS) -> tuple[Table | None, str]:
    """Published beside measured, and a sentence on the rows that are left out, empty if all are there.

    The two columns of a quantity stand side by side; columns without any value are left out.
    """
    whole = one.beside
    whole = whole.loc[:, [bool(whole[name].notna().any()) for name in whole.columns]]
    if whole.empty:
        return None, ""
    has_published = bool(one.published.rows and one.on)
    names = _ordered(list(map(str, whole.columns)))
    shown = whole[names].head(most)
    columns = [Column(_heading(name, names), numeric=_is_numeric(whole[name])) for name in names]
    rows = [
        [
            _cell(name, value, as_printed=name.endswith(_PUBLISHED) or name in one.on)
            for name, value in zip(names, row, strict=True)
        ]
        for row in shown.itertuples(index=False, name=None)
    ]
    caption = "Published beside measured" if has_published else "Measured"
    left = len(whole) - len(shown)
    said = f"{left} more rows stand in {TABLE} of artefacts/{one.id}/{one.budget}." if left else ""
    return Table(caption, columns, rows, row_headers=max(len(one.on), 1)), said


def _ordered(names: list[str]) -> list[str]:
    """Each measured column follows the published one of the same quantity."""
    twins = {_twin(name): name for name in names if name.endswith(_PUBLISHED) and _twin(name) in names}
    both = {published: [published, measured] for measured, published in twins.items()}
    return [column for name in names if name not in twins for column in both.get(name, [name])]


def _twin(name: str) -> str:
    """The name of the column that has the other one of a published and a measured number."""
    if name.endswith(_PUBLISHED):
        return name.removesuffix(_PUBLISHED) + _MEASURED
    return name.removesuffix(_MEASURED) + _PUBLISHED if name.endswith(_MEASURED) else ""


def is_published(heading: str) -> bool:
    """Whether a column of `table_of` with this heading is what was published of a quantity that is also measured."""
    return heading.endswith(f", {_PUBLISHED[1:]}")


def _heading(name: str, names: list[str]) -> str:
    if _twin(name) not in names:
        return spoken(name)
    quantity, _, side = name.rpartition("_")
    return f"{spoken(quantity)}, {side}"


def _cell(name: str, value: Any, *, as_printed: bool) -> str:
    text = text_of(_scalar(value), as_printed=as_printed)
    # The names of single quantities are written as those of columns are.
    return spoken(text) if name == "quantity" else text


def _scalar(value: Any) -> Any:
    """A cell as Python's own number, text or list; None where there is nothing."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return plain(value)


def _is_numeric(column: pd.Series[Any]) -> bool:
    cells = [cell for cell in map(_scalar, column) if cell is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)
