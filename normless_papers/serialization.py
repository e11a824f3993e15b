"""Values and tables of measurements as JSON holds them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import pandas as pd

from normless.output import jsonable

_INFINITIES = {"inf": float("inf"), "-inf": float("-inf")}


def plain(value: Any) -> Any:
    """A nested value as JSON: numbers of arrays as Python's, sets and tuples as lists, NaN as None, else its text."""
    return jsonable(_unwrapped(value))


def number_of(value: float | str | None) -> float:
    """A number back from what `plain` made of it."""
    return float("nan") if value is None else float(value)


def table_to_dict(table: pd.DataFrame) -> dict[str, Any]:
    """The columns' names, and every row as a list of its cells."""
    rows = [plain(row) for row in table.itertuples(index=False, name=None)]
    return {"columns": [str(name) for name in table.columns], "rows": rows}


def table_from_dict(values: Mapping[str, Any]) -> pd.DataFrame:
    """The inverse of `table_to_dict`: what is missing among numbers is NaN again, and infinities are numbers."""
    table = pd.DataFrame(values["rows"], columns=values["columns"])
    for name in table.columns:
        cells = [_INFINITIES.get(cell, cell) if isinstance(cell, str) else cell for cell in table[name]]
        if any(isinstance(cell, str) for cell in table[name]) and not any(isinstance(cell, str) for cell in cells):
            table[name] = cells
    return table


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _unwrapped(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unwrapped(one) for one in value]
    if isinstance(value, Set):
        return sorted(map(str, value))
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "tolist"):
        return _unwrapped(value.tolist())
    return str(value)
