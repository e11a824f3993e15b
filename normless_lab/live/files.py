"""Files of a run during its training, which may be missing, out of date, damaged or unrelated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from normless_lab.live.view import Line
from normless_lab.process import read_table


class Files:
    """Files of a run; unreadable files are listed in `problems` and skipped."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, path: Path, reader: Callable[[Path], Any], kind: Callable[..., Any]) -> Any:
        """Return the contents of a file by `reader`, or an empty `kind` if it fails or the file does not exist."""

        def content() -> Any:
            if path.exists() and not path.is_file():
                # Reading a pipe would wait for whoever writes to it.
                raise TypeError("expected a file")
            value = reader(path) if path.exists() else kind()
            if not isinstance(value, type(kind())):
                raise TypeError(f"expected a {type(kind()).__name__}, got a {type(value).__name__}")
            return value

        return self._result(path, content, kind)

    def table(self, path: Path) -> pd.DataFrame:
        """Return a table, which is empty if the file does not exist."""
        return self.read(path, read_table, pd.DataFrame)  # type: ignore[no-any-return]

    def lines(self, path: Path, drawn: Callable[[], list[Line] | Line]) -> list[Line]:
        """Return lines of a table; its columns may be missing or of any type."""
        lines = self._result(path, drawn, list)
        return lines if isinstance(lines, list) else [lines]

    def _result(self, path: Path, function: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        try:
            return function()
        # A damaged file may raise anything, and the page goes on without it.
        except Exception as error:
            text = (str(error) or type(error).__name__).splitlines()[0]
            self.problems.append(f"{path.name} is not used: {text}")
            return otherwise()
