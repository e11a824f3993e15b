"""The keyword arguments of the grammars; required columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from normless_lab.plots._palette import Ink

if TYPE_CHECKING:
    import pandas as pd

Ticks: TypeAlias = (
    Literal["auto", "values", "integers", "percent", "powers of 2", "powers of 10"] | Mapping[float, str]
)
NamePlaces: TypeAlias = Literal["beside", "legend", "none"]


@dataclass(frozen=True)
class Law:
    """A dotted reference curve with its name: y as a function of x, or as a column of the table."""

    name: str
    y: str | Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


class Style(TypedDict, total=False):
    """The keyword arguments of the grammars; each says in its docstring which of the last groups it takes.

    Every grammar also takes ``ax``, the axes to draw on instead of a new figure, and those with series ``by``, the
    column of their names, ``scheme`` by default.

    Keys of all grammars:
        inks: the colour and marker of each series; by default those of its scheme.
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

    Keys of series, for `lines`, `points`, `measured_on_predicted` and `histogram`:
        each: a column of single curves within a series, such as runs: thin lines, or the only lines if `summary` is
            None.
        summary: of rows with the same x, as `pandas` names it. For `lines` ``"mean"`` (the default), ``"median"``,
            ``"sum"``; for `points` ``"median"`` or ``"mean"`` draws a line through theirs.
        band: the column of a spread that is filled to both sides, or ``"std"`` over the rows with the same x.
        error: bars: the column of their half width, or the columns of their ends.
        hollow: a column of booleans; points that have it are hollow, since they did not train.
        named: the name in the legend, from that of the series, and for `lines` its last value; empty for none.
        beside: a column of reference numbers of named rows, such as published ones, drawn as hollow marks, and
            `beside_marker`, the marker of those.
        groups: a column by which named rows are put together; its labels are above their rows.
        predicted: the column of the prediction; ``predicted_`` and the measured column by default.
        law: the column of a dotted line, such as the law of an idealized network; of `histogram` a table of curves
            with the columns ``x``, ``density`` and that of the series. Its name is `law_name`.
        apart: the distance of neighbouring series, in units of x.
        joined: draw a line through the measured points; the prediction is then dashed.

    Keys of bins and cells, for `histogram` and `heat_map`:
        bins: the number of bins in which values are counted, 50 by default.
        limits: of the bins; values beyond are counted in the outermost. From 0 to the largest value by default.
        share: count shares instead of densities.
        height: the column of the heights of bins or bars, ``density`` by default.
        bars: draw a bar of the height at each x.
        signed: blue below 0 and orange above; otherwise from the paper's colour at 0 to dark.
        ink: the colour of values that are not signed.
        unit: of the value, beside the scale.
    """

    inks: Mapping[str, Ink]
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
    names: NamePlaces
    size: tuple[float, float]
    each: str
    summary: str | None
    band: str
    error: str | tuple[str, str]
    hollow: str
    named: Callable[..., str]
    beside: str | None
    beside_marker: str
    groups: str
    predicted: str
    law: Any
    law_name: str
    apart: float
    joined: bool
    bins: int
    limits: tuple[float, float]
    share: bool
    height: str
    bars: bool
    signed: bool
    ink: Ink
    unit: str


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
