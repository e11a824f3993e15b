"""The result of a reproduced artefact: verdict, checks, numbers and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pandas as pd

from normless.errors import NormlessError
from normless.spec import jsonable
from normless_papers.budgets import Budget
from normless_papers.claims import Basis, Check, Verdict, verdict_of
from normless_papers.evidence import beside
from normless_papers.published import Published, published_as

# Counts up when older results can no longer be read.
FORMAT = 2
_INFINITIES = {"inf": float("inf"), "-inf": float("-inf")}


class ResultError(NormlessError, ValueError):
    """A stored result cannot be read; the message says which and what to do."""


@dataclass(frozen=True)
class Reproduction:
    """The result of an artefact at a budget; attributes that `Evidence` has too are as there.

    Attributes:
        basis: what its checks rest on: a formula, a measurement or training; empty where it could not be loaded.
        asked: what decides the numbers besides the code: `data`, `data_root`, `seed` and the budget's `settings`.
        measured: empty where an error came first.
        error: what went wrong, in a sentence; empty if nothing.
        seconds: wall time; runs that were there already take none.
        provenance: versions, machine and date.
        runs: hashes of the training runs that it rests on.
        figure: describes the figure in words; empty where there is none.
        entry: what is published of an artefact of another paper; None of the five papers'.
    """

    id: str
    budget: Budget
    asked: Mapping[str, Any]
    basis: Basis | Literal[""] = ""
    measured: pd.DataFrame = field(default_factory=pd.DataFrame)
    on: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    setup: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0
    provenance: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    figure: str = ""
    entry: Published | None = None

    @property
    def verdict(self) -> Verdict | Literal["error"]:
        """That of its checks, or error."""
        return "error" if self.error else verdict_of(self.checks)

    @property
    def published(self) -> Published:
        """What the paper has."""
        return self.entry or published_as(self.id)

    @property
    def beside(self) -> pd.DataFrame:
        """Published and measured numbers in one table; see `normless_papers.evidence.beside`."""
        return beside(self.published.rows, self.measured, self.on)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON, with the verdict and the published numbers."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values |= {"format": FORMAT, "verdict": self.verdict, "published": self.published.rows}
        values |= {"checks": [vars(one) for one in self.checks], "measured": table_to_dict(self.measured)}
        entry = values.pop("entry")
        text: dict[str, Any] = plain(values | ({"entry": entry.to_entry()} if entry else {}))
        return text

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reproduction:
        """The inverse of `to_dict`; ResultError if the values are no result, or one of another normless."""
        if not isinstance(values, Mapping) or not isinstance(values.get("format"), int):
            raise ResultError("expected a result as normless reproduce writes it, with its format")
        if values["format"] > FORMAT:
            raise ResultError("it was written by a later normless than this one; update normless to read it")
        if values["format"] < FORMAT:
            raise ResultError("it was written by an earlier normless; carry it out again with --again")
        readers: dict[str, Callable[[Any], Any]] = {
            "measured": table_from_dict,
            "checks": _checks,
            "entry": Published.from_entry,
        } | dict.fromkeys(("on", "remarks", "runs"), tuple)
        names = [one.name for one in fields(cls) if one.name != "entry" or "entry" in values]
        try:
            if "entry" not in values:
                published_as(values["id"])
            return cls(**{name: readers[name](values[name]) if name in readers else values[name] for name in names})
        except KeyError as error:
            raise ResultError(f"it does not say {error}, or says what this normless does not know") from error


def _checks(rows: Any) -> tuple[Check, ...]:
    nan = math.nan
    numbers = [{name: nan if one is None else float(one) for name, one in row["numbers"].items()} for row in rows]
    return tuple(Check(row["claim"], row["verdict"], own) for row, own in zip(rows, numbers, strict=True))


def plain(value: Any) -> Any:
    """A nested value as JSON: numbers of arrays as Python's, sets and tuples as lists, NaN as None, else its text."""
    return jsonable(_unwrapped(value))


def table_to_dict(table: pd.DataFrame) -> dict[str, Any]:
    """The columns' names, and every row as a list of its cells."""
    rows = [plain(row) for row in table.itertuples(index=False, name=None)]
    return {"columns": [str(name) for name in table.columns], "rows": rows}


def table_from_dict(values: Mapping[str, Any]) -> pd.DataFrame:
    """The inverse of `table_to_dict`: what is missing among numbers is NaN again, and infinities are numbers."""
    table = pd.DataFrame(values["rows"], columns=values["columns"])
    for name in table.columns:
        cells = [_INFINITIES.get(cell, cell) if isinstance(cell, str) else cell for cell in table[name]]
        if any(isinstance(cell, str) for cell in table[name]) and not any(isinstance(cell, str) for cell in cells):
            table[name] = cells
    return table


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _unwrapped(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unwrapped(one) for one in value]
    if isinstance(value, Set):
        return sorted(map(str, value))
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "tolist"):
        return _unwrapped(value.tolist())
    return str(value)
