"""The result of a reproduced artefact: verdict, checks, numbers and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pandas as pd

from normless.errors import NormlessError
from normless_papers.budgets import Budget
from normless_papers.claims import Basis, Check, Verdict, verdict_of
from normless_papers.evidence import beside
from normless_papers.published import Published, published_as
from normless_papers.serialization import number_of, plain, table_from_dict, table_to_dict

# Counts up when older results can no longer be read.
FORMAT = 2


class ResultError(NormlessError, ValueError):
    """A stored result cannot be read; the message says which and what to do."""


@dataclass(frozen=True)
class Reproduction:
    """The result of an artefact at a budget.

    Attributes:
        id: of the artefact.
        budget: which it was carried out with.
        basis: what its checks rest on: a formula, a measurement or training; empty where it could not be loaded.
        asked: what decides the numbers besides the code: `data`, `data_root`, `seed` and the budget's `settings`.
        measured: see `normless_papers.evidence.Evidence`, as `on`, `checks`, `setup` and `remarks` are; empty where
            an error came first.
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
        """The inverse of `to_dict`; what is published is read from the package.

        Raises:
            ResultError: the values are no result, or one of a later normless.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("format"), int):
            raise ResultError("expected a result as normless reproduce writes it, with its format")
        if values["format"] > FORMAT:
            raise ResultError("it was written by a later normless than this one; update normless to read it")
        if values["format"] < FORMAT:
            raise ResultError("it was written by an earlier normless; carry it out again with --again")
        readers: dict[str, Callable[[Any], Any]] = {
            "measured": table_from_dict,
            "checks": lambda checks: tuple(map(_check, checks)),
            "entry": Published.from_entry,
        } | dict.fromkeys(("on", "remarks", "runs"), tuple)
        names = [one.name for one in fields(cls) if one.name != "entry" or "entry" in values]
        try:
            if "entry" not in values:
                published_as(values["id"])
            return cls(**{name: readers[name](values[name]) if name in readers else values[name] for name in names})
        except KeyError as error:
            raise ResultError(f"it does not say {error}, or says what this normless does not know") from error


def _check(values: Mapping[str, Any]) -> Check:
    numbers = {name: number_of(value) for name, value in values["numbers"].items()}
    return Check(values["claim"], values["verdict"], numbers)
