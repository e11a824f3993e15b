"""Tables in files that others wrote or will open: Parquet of bounded size, and CSV without formulas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 30_000_000
MOST_BYTES = 2**29


def read_table(path: Path) -> pd.DataFrame:
    """Return a Parquet table; a ValueError for one of more than 30 million values or half a gigabyte."""
    # Most of what this package is for needs neither.
    import pandas as pd
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    cells = about.num_rows * about.num_columns
    size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
    if cells > MOST_CELLS or size > MOST_BYTES:
        raise ValueError(
            f"expected a table of at most {MOST_CELLS:,} values and {MOST_BYTES:,} bytes, got {cells:,} values of "
            f"{size:,} bytes"
        )
    table: pd.DataFrame = pd.read_parquet(path)
    return table


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with an apostrophe before texts that a spreadsheet would take for formulas."""
    texts = table.select_dtypes(exclude="number")
    table.assign(**{str(name): texts[name].map(_as_text) for name in texts}).to_csv(path, index=False)


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
