"""Files of a run as they are while it trains: missing, of another moment, damaged, or of somebody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from normless_lab.live.view import Line


class Files:
    """Files of a run; those that cannot be read or drawn are listed in `problems`, and left out."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, path: Path, reader: Callable[[Path], Any], kind: Callable[..., Any]) -> Any:
        """What `reader` makes of a file, an empty `kind` where that fails."""
        try:
            value = reader(path)
            if isinstance(value, type(kind())):
                return value
            raise TypeError(f"expected a {type(kind()).__name__}, got a {type(value).__name__}")
        except FileNotFoundError:
            pass
        # A damaged file may raise anything, and the page goes on without it.
        except Exception as error:
            self._tell(path, error)
        return kind()

    def table(self, path: Path) -> pd.DataFrame:
        """A table, empty where there is none."""
        return self.read(path, pd.read_parquet, pd.DataFrame)  # type: ignore[no-any-return]

    def lines(self, path: Path, made: Callable[[], list[Line] | Line]) -> list[Line]:
        """Lines of a table, whose columns may be missing or anything."""
        try:
            lines = made()
            return lines if isinstance(lines, list) else [lines]
        except (KeyError, ValueError, TypeError) as error:
            self._tell(path, error)
            return []

    def _tell(self, path: Path, error: Exception) -> None:
        text = (str(error) or type(error).__name__).splitlines()[0]
        self.problems.append(f"{path.name} is not used: {text}")
