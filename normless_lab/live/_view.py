"""The contents of the live page as plain data, and files of a run, which may be missing, old or damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normless_lab.plots import Table
from normless_lab.process import read_table

# Points of a line; the steps of a long run are averaged in this many equal parts.
POINTS = 400


@dataclass(frozen=True)
class Curve:
    """A curve: its name, its points, and the colour, by its name in `normless_lab.plots._palette`."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    ink: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis, with vertical lines at `marks`; numbers are on a logarithmic axis if `log`."""

    title: str
    x_label: str
    lines: Sequence[Curve]
    unit: str = ""
    log: bool = False
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class View:
    """The displayed state of a run or a sweep.

    Attributes:
        title: the folder or the sweep's name.
        state: trained, chance, diverged, failed (runs of a sweep), running, waiting or interrupted.
        words: the progress as a sentence.
        done, of: the progress as numbers; `of` is 0 if it is not known.
        findings: the sentence of each finding, the last first, with its cure.
        settings: settings of the run.
        problems: the files that could not be read, with reasons.
    """

    title: str
    state: str
    words: str
    done: float = 0.0
    of: float = 0.0
    charts: Sequence[Chart] = ()
    findings: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    settings: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the view as data for JSON."""
        return asdict(self)


def line(name: str, x: Any, y: Any, ink: str, opacity: float = 1.0, scale: float = 1.0) -> Curve:
    """Return a line through at most `POINTS` numbers of any type; numbers that are not finite become None, a gap.

    Raises:
        ValueError: a value is not a number, or x and y have different lengths.
    """
    at, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float) * scale
    if at.shape != values.shape or not np.isfinite(at).all():
        raise ValueError(f"Expected a finite position for each of {values.size} numbers of {name}.")
    if at.size > POINTS:
        parts = np.array_split(np.arange(at.size), POINTS)
        at, values = (np.array([of[part].mean() for part in parts]) for of in (at, values))
    shown = [float(f"{value:.6g}") if isfinite(value) else None for value in values.tolist()]
    return Curve(name, at.round(4).tolist(), shown, ink, opacity)


class RunFiles:
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

    def lines(self, path: Path, drawn: Callable[[], list[Curve] | Curve]) -> list[Curve]:
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
