"""The check that a table carries the columns a figure is drawn from."""

from __future__ import annotations

import pandas as pd


def require_columns(table: pd.DataFrame, columns: tuple[str, ...], purpose: str) -> None:
    """Refuse a table that is empty or lacks a column.

    Raises:
        ValueError: naming what is missing and what was there.
    """
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(
            f"{purpose} needs the columns {', '.join(columns)}, but the table lacks {', '.join(missing)}; "
            f"it has {', '.join(map(str, table.columns)) or 'none'}."
        )
    if table.empty:
        raise ValueError(f"{purpose} needs at least one row, but the table is empty.")
