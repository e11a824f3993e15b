"""The common arguments of plots: a frame, reference curves, and required columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Ticks: TypeAlias = (
    Literal["auto", "values", "integers", "percent", "powers of 2", "powers of 10"] | Mapping[float, str]
)
Names: TypeAlias = Literal["beside", "legend", "none"]


@dataclass(frozen=True)
class Law:
    """A dotted reference curve with its name: y as a function of x, or a column of the table."""

    name: str
    y: str | Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


class Frame(TypedDict, total=False):
    """The arguments of every grammar besides its columns.

    Every grammar also takes ``ax``, the axes to draw on instead of a new figure, and those with series ``by``, the
    column of their names (``scheme`` by default), and ``inks``, the colour and marker of each (by default those of
    its scheme).

    Keys:
        title: above the plot.
        x_label, y_label: of the axes, with units; by default those of the columns.
        log: which axes are logarithmic: ``"x"``, ``"y"`` or ``"xy"``; ``"y?"`` if y spans more than a factor of 30.
        x_ticks, y_ticks: ``"values"`` puts a tick at each value of the table, ``"powers of 2"`` writes the exponent k
            as 2ᵏ; a mapping gives the text at each place.
        x_limits, y_limits: None leaves an end to the data.
        bounds: limits of a drawn quantity, such as (0, 100) for percentages; bars end there.
        x_marks, y_marks: where thin lines go through the plot.
        laws: reference curves.
        name: format of the names of the series, such as ``"M = {}"``.
        names: where the names of the series are: in a legend beside the plot (the default), in one within it, or
            nowhere.
        size: of a new figure, in inches.
    """

    title: str
    x_label: str
    y_label: str
    log: str
    x_ticks: Ticks
    y_ticks: Ticks
    x_limits: tuple[float | None, float | None]
    y_limits: tuple[float | None, float | None]
    bounds: tuple[float | None, float | None]
    x_marks: Sequence[float]
    y_marks: Sequence[float]
    laws: Sequence[Law]
    name: str
    names: Names
    size: tuple[float, float]


def require_unique(table: pd.DataFrame, columns: Sequence[str], what: str) -> None:
    """Raise a ValueError if two rows have the same values in the columns, as for several matrices or networks."""
    if table.duplicated(list(columns)).any():
        raise ValueError(f"Expected one row per {' and '.join(columns)}, but one is there twice; draw one {what}.")


def require_columns(table: pd.DataFrame, columns: Sequence[str | None], purpose: str) -> None:
    """Check that a table is not empty and has the columns; None entries are ignored.

    Raises:
        ValueError: names the missing columns and those of the table.
    """
    needed = [column for column in columns if column is not None]
    missing = [column for column in needed if column not in table.columns]
    if missing:
        raise ValueError(
            f"{purpose} needs the columns {', '.join(needed)}, but the table lacks {', '.join(missing)}; "
            f"it has {', '.join(map(str, table.columns)) or 'none'}."
        )
    if table.empty:
        raise ValueError(f"{purpose} needs at least one row, but the table is empty.")
