"""The contents of the live page at one moment, as plain data: progress, curves, findings, tables, settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from normless_lab.plots import Table

# Points of a line; the steps of a long run are averaged in this many equal parts.
POINTS = 400


@dataclass(frozen=True)
class Line:
    """A curve: its name, its points, and the colour, by its name in `normless_lab.plots.palette`."""

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
    lines: Sequence[Line]
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


def line(name: str, x: Any, y: Any, ink: str, opacity: float = 1.0, scale: float = 1.0) -> Line:
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
    return Line(name, at.round(4).tolist(), shown, ink, opacity)
