"""The result of measuring an artefact: numbers, facts for the checks of the claim, the setup, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless_papers.claims import Claim

# The column of the names of single quantities.
QUANTITY = ("quantity",)


@dataclass(frozen=True)
class Evidence:
    """The result of an artefact's function.

    Attributes:
        measured: a tidy table, one observation a row; a column named as a published one is compared with it.
        facts: the argument of the artefact's checks; see `normless_papers.artefact.artefact`.
        setup: how it was measured: network, data set and its origin, seeds, epochs, and all that decides the numbers.
        on: the columns that match measured rows with published ones, such as ("method", "depth"); by default
            `quantity` if the table has this column.
        draw: draws the figure and returns its axes.
        remarks: notes that a reader needs to interpret the numbers.
        reduction: how the set-up is smaller than the paper's, as a sentence; may be empty.
        premises: checks without which a failed check does not contradict the paper.
    """

    measured: pd.DataFrame
    facts: Any
    setup: Mapping[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = QUANTITY
    draw: Callable[[], Axes] | None = None
    remarks: tuple[str, ...] = field(default=())
    reduction: str = ""
    premises: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        if self.on == QUANTITY and "quantity" not in self.measured:
            object.__setattr__(self, "on", ())
        missing = [name for name in self.on if name not in self.measured.columns]
        if missing:
            raise ValueError(
                f"The measured table has no column {', '.join(missing)} to set beside the published one; it has "
                f"{', '.join(map(str, self.measured.columns))}."
            )


def with_quantities(quantities: Mapping[str, Any], *tables: pd.DataFrame) -> pd.DataFrame:
    """Return a row `quantity` and `value` for each single quantity, and then the rows of some tables."""
    rows = pd.DataFrame(list(quantities.items()), columns=["quantity", "value"])
    return pd.concat([rows, *tables], ignore_index=True)


def beside(rows: Sequence[Mapping[str, Any]], measured: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """Return published and measured numbers in one table: a row per published row, then rows that were only measured.

    The columns of `on`, compared as text, match the rows and come first. Columns in both become `NAME_published` and
    `NAME_measured`, with NaN where a row has no match; lists in published rows are written as text.
    """
    if not rows or not on:
        return measured.copy()
    printed = pd.DataFrame([{name: _cell(value) for name, value in row.items()} for row in rows])
    left = printed.assign(**{name: printed[name].map(_key) for name in on}, _printed=range(len(printed)))
    right = measured.assign(**{name: measured[name].map(_key) for name in on}, _found=range(len(measured)))
    merged = left.merge(right, how="outer", on=list(on), suffixes=("_published", "_measured"))
    merged = merged.sort_values(["_printed", "_found"], na_position="last").drop(columns=["_printed", "_found"])
    return merged[[*on, *(name for name in merged.columns if name not in on)]].reset_index(drop=True)


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return value


def _key(value: Any) -> str:
    """Return a key that is equal for numbers of equal value, such as 16 and 16.0; empty for missing values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if pd.isna(value) else str(value)
