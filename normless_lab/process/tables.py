"""Parquet tables of others, of which a small file may stand for more values than fit in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
