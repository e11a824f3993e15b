"""The result of a reproduced artefact: verdict, checks, numbers and provenance; and its files in a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes

from normless.errors import NormlessError
from normless.saving import digest_of, digest_of_values, inside, replaced, write_csv
from normless.spec import jsonable
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.claims import Basis, CheckAspect, Claim, Conclusion, conclusion_of, obstacle_of
from normless_papers.distance import Distance
from normless_papers.evidence import beside
from normless_papers.published import Published, published, published_as

# Increased whenever older results can no longer be read.
FORMAT = 3
_INFINITIES = {"inf": float("inf"), "-inf": float("-inf")}


class ResultError(NormlessError, ValueError):
    """A stored result cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Reproduction:
    """The result of an artefact at a budget; see `Evidence` for the attributes that both have.

    Attributes:
        basis: what its checks rest on; empty if the artefact could not be loaded.
        asked: what decides the numbers besides the code: `data`, `data_root`, `seed` and the budget's `settings`.
        measured: empty after an error.
        distance: how the set-up differs from the paper's.
        error: the error as a sentence; empty if there was none.
        seconds: wall time; runs that were finished already take none.
        provenance: versions, machine and date.
        runs: hashes of the training runs that it rests on.
        figure: the figure in words; empty without a figure.
        entry: the published entry of an artefact of another paper; None for the five papers.
    """

    id: str
    budget: Budget
    asked: Mapping[str, Any]
    basis: Basis | Literal[""] = ""
    measured: pd.DataFrame = field(default_factory=pd.DataFrame)
    on: tuple[str, ...] = ()
    checks: tuple[Claim, ...] = ()
    distance: Distance = field(default_factory=lambda: Distance(of_same_kind=False, known=False))
    setup: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0
    provenance: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    figure: str = ""
    entry: Published | None = None

    @property
    def obstacle(self) -> str:
        """Why a failed check does not contradict the paper, as a clause; see `normless_papers.claims.obstacle_of`."""
        return obstacle_of(self.checks, self.basis, of_same_kind=self.distance.of_same_kind)

    @property
    def demonstrates(self) -> bool:
        """Whether data or network are of another kind than the paper's, so that nothing is said about the paper."""
        return self.basis != "formula" and not self.distance.of_same_kind

    @property
    def shape(self) -> Conclusion | None:
        """The verdict on the shape of the result: orderings and directions; None if nothing is said of it."""
        return self._conclusion("shape")

    @property
    def number(self) -> Conclusion | None:
        """The verdict on the numbers that the paper prints; None if none are checked."""
        return self._conclusion("number")

    @property
    def beyond(self) -> Conclusion | None:
        """The verdict on what the text says beyond the artefact's own claim; None if nothing is checked."""
        return self._conclusion("beyond")

    @property
    def verdict(self) -> Conclusion | Literal["error"]:
        """The verdict on the shape, or on the numbers if that is all; or error."""
        return "error" if self.error else self.shape or self.number or "not seen here"

    @property
    def verdicts(self) -> str:
        """The verdict in words, with those on printed numbers and on what the text says beyond the claim."""
        others = {"numbers": self.number if self.shape else None, "beyond it": self.beyond}
        return ", ".join([self.verdict, *(f"{name} {own}" for name, own in others.items() if own)])

    def _conclusion(self, aspect: CheckAspect) -> Conclusion | None:
        return conclusion_of(self.checks, aspect, decisive=not self.obstacle, basis=self.basis)

    @property
    def published(self) -> Published:
        """The entry of the paper."""
        return self.entry or published_as(self.id)

    @property
    def beside(self) -> pd.DataFrame:
        """Published and measured numbers in one table; see `normless_papers.evidence.beside`."""
        return beside(self.published.rows, self.measured, self.on)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON, with the verdict and the published numbers."""
        values = {own.name: getattr(self, own.name) for own in fields(self)}
        values |= {"format": FORMAT, "verdict": self.verdict, "number": self.number, "beyond": self.beyond}
        values |= {"published": self.published.rows}
        values |= {"checks": [vars(check) for check in self.checks], "measured": table_to_dict(self.measured)}
        values |= {"distance": vars(self.distance)}
        entry = values.pop("entry")
        text: dict[str, Any] = plain(values | ({"entry": entry.to_entry()} if entry else {}))
        return text

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reproduction:
        """Invert `to_dict`; raise a ResultError for values of another kind or of another version of normless."""
        if not isinstance(values, Mapping) or not isinstance(values.get("format"), int):
            raise ResultError("expected a result as normless reproduce writes it, with its format")
        if values["format"] > FORMAT:
            raise ResultError("it was written by a later normless than this one; update normless to read it")
        if values["format"] < FORMAT:
            raise ResultError("it was written by an earlier normless; carry it out again with --again")
        readers: dict[str, Callable[[Any], Any]] = {
            "measured": table_from_dict,
            "checks": _checks,
            "distance": lambda texts: Distance(**texts),
            "entry": Published.from_entry,
        } | dict.fromkeys(("on", "remarks", "runs"), tuple)
        names = [own.name for own in fields(cls) if own.name != "entry" or "entry" in values]
        try:
            if "entry" not in values:
                published_as(values["id"])
            return cls(**{name: readers[name](values[name]) if name in readers else values[name] for name in names})
        except KeyError as error:
            raise ResultError(f"it lacks {error}, or this version of normless does not know it") from error


def _checks(rows: Any) -> tuple[Claim, ...]:
    nan = math.nan
    numbers = [{name: nan if own is None else float(own) for name, own in row["numbers"].items()} for row in rows]
    return tuple(Claim(row["claim"], row["verdict"], own, row["of"]) for row, own in zip(rows, numbers, strict=True))


def plain(value: Any) -> Any:
    """Return a nested value as JSON: arrays, sets and tuples as lists, NaN as None, other objects as text."""
    return jsonable(_unwrapped(value))


def table_to_dict(table: pd.DataFrame) -> dict[str, Any]:
    """Return the names of the columns, and every row as a list of its cells."""
    rows = [plain(row) for row in table.itertuples(index=False, name=None)]
    return {"columns": [str(name) for name in table.columns], "rows": rows}


def table_from_dict(values: Mapping[str, Any]) -> pd.DataFrame:
    """Invert `table_to_dict`: missing numbers are NaN again, and infinities are numbers."""
    table = pd.DataFrame(values["rows"], columns=values["columns"])
    for name in table.columns:
        cells = [_INFINITIES.get(cell, cell) if isinstance(cell, str) else cell for cell in table[name]]
        if any(isinstance(cell, str) for cell in table[name]) and not any(isinstance(cell, str) for cell in cells):
            table[name] = cells
    return table


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _unwrapped(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unwrapped(item) for item in value]
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


RESULT, TABLE, FIGURE, PICTURE = "result.json", "measured.csv", "figure.svg", "figure.png"
_FILES = (TABLE, FIGURE, PICTURE)


def folder_of(out: Path, id: str, budget: Budget) -> Path:  # noqa: A002 - what the papers' index calls it
    """Return the folder of the result of an artefact at a budget; a ValueError if it is not inside `artefacts/`."""
    return inside(out / "artefacts", id, budget)


def save(reproduction: Reproduction, drawn: Axes | str | None, out: Path) -> Path:
    """Write a result instead of an older one, with its figure or the text of its SVG file; return its folder.

    The older one is deleted first and `result.json` is written last, atomically, so only complete results are loaded.
    """
    from normless_lab.plots import save_png, save_svg

    folder = folder_of(out, reproduction.id, reproduction.budget)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, *_FILES):
        (folder / name).unlink(missing_ok=True)
    write_csv(reproduction.measured, folder / TABLE)
    if isinstance(drawn, str):
        (folder / FIGURE).write_text(drawn, encoding="utf-8")
    elif drawn is not None:
        save_svg(drawn, folder / FIGURE)
        save_png(drawn, folder / PICTURE, dpi=150)
    files = {name: digest_of(folder / name) for name in _FILES if (folder / name).exists()}
    values = reproduction.to_dict() | {"files": files}
    with replaced(folder / RESULT) as part:
        text = json.dumps(
            values | {"digest": digest_of_values(values)}, indent=1, ensure_ascii=False, allow_nan=False
        )
        part.write_text(text + "\n", encoding="utf-8")
    return folder


def load(out: Path, id: str, budget: Budget) -> Reproduction | None:  # noqa: A002 - what the papers' index calls it
    """Return the result of an artefact at a budget, None without one; raise a ResultError if it cannot be read."""
    path = folder_of(out, id, budget) / RESULT
    try:
        result = Reproduction.from_dict(_intact(json.loads(path.read_text(encoding="utf-8")), path.parent))
        if (result.id, result.budget) != (id, budget):
            raise ResultError(f"expected the result of {id} at {budget}, got {result.id} at {result.budget}")
        return result
    except FileNotFoundError:
        return None
    except (ResultError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ResultError(f"{path} cannot be read: {error}; carry it out again with --again.") from error


def _intact(values: Any, folder: Path) -> Any:
    """Return the values of a result; ResultError unless they and the files beside it are as they were written."""
    if not isinstance(values, dict) or values.pop("digest", None) != digest_of_values(values):
        raise ResultError("it was damaged after it was written")
    for name, digest in values["files"].items():
        # A file that was removed on purpose is not damage.
        if name in _FILES and (folder / name).exists() and digest_of(folder / name) != digest:
            raise ResultError(f"{name} beside it was damaged after it was written")
    return values


def stored(out: Path) -> Iterator[Reproduction]:
    """Yield every result in a folder as `load`, in the order of the papers and then of the budgets."""
    others = sorted("/".join(path.parts[-4:-2]) for path in (out / "artefacts").glob(f"*/*/*/{RESULT}"))
    for name in dict.fromkeys([*published(), *others]):
        for budget in BUDGETS:
            if (result := load(out, name, budget)) is not None:
                yield result
