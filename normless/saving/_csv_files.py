"""Tables as CSV, which people open in spreadsheets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with an apostrophe before texts and titles that a spreadsheet would take for formulas."""
    texts = table.select_dtypes(exclude="number")
    safe = table.assign(**{str(name): texts[name].map(_as_text) for name in texts})
    safe.rename(columns=_as_text).to_csv(path, index=False)


def _as_text(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    # A carriage return alone would end a row for some readers, and is not quoted.
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell.startswith(("=", "+", "-", "@", "\t", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
