"""The evidence in a folder as one Parquet file, and one folder of results from several."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from normless.code_names import names_of_data
from normless.saving import digest_of_values, replaced
from normless_lab.process import read_table
from normless_lab.sweeps import Laboratory, RunRow
from normless_papers.artefact import MissingRunsError
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.pages.headline import DECIDING
from normless_papers.planning.plan import claims_at
from normless_papers.published import published
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.reproduction import FIGURE, Reproduction, ResultError, folder_of, load, save, stored

# The kind of the row of an artefact: its config has id and budget, its result what was measured without training.
_ARTEFACT = "artefact"
_COLUMNS = [column.name for column in fields(RunRow)]
_JSON = ("config", "result", "versions")
_KINDS: dict[str, type | tuple[type, ...]] = dict.fromkeys(("hash", "kind", "outcome", "finished_at", "machine"), str)
_KINDS |= {"config": dict, "versions": dict, "seconds": (int, float), "error": (str, type(None))}
_DIGEST = "digest"
# In the result of a row: the text of its SVG file.
_DRAWN = "drawn"


def write_runs(out: Path, path: Path) -> int:
    """Write the evidence in a folder to a Parquet file; return the number of runs.

    Runs of unfinished artefacts are part of it, and trainings at smoke and failed runs are not.
    """
    found = [result for result in stored(out) if not result.error]
    results = [result for result in found if result.budget in DECIDING or result.basis != "training"]
    left_out = {name for result in found if result not in results for name in result.runs}
    left_out -= {name for result in results for name in result.runs}
    with laboratory_in(out) as laboratory:
        found_runs = laboratory.state.read(laboratory.state.hashes() - left_out)
    asked = {name for result in results for name in result.runs}
    runs = {name: run for name, run in found_runs.items() if run.outcome != "failed" or name in asked}
    # Where the data were on this machine is no part of a run's identity.
    rows = [vars(run) | {"config": _without_places(run.config)} for _, run in sorted(runs.items())]
    rows += [_artefact_row(result, folder_of(out, result.id, result.budget) / FIGURE) for result in results]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for name in _JSON:
        table[name] = [None if value is None else json.dumps(value, ensure_ascii=False) for value in table[name]]
    table[_DIGEST] = [digest_of_values(row) for row in _rows(table)]
    with replaced(path) as part:
        table.to_parquet(part, index=False, compression="zstd", compression_level=19)
    return len(runs)


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if name == "data_root" else value for name, value in config.items()}


def _artefact_row(result: Reproduction, figure: Path) -> dict[str, Any]:
    """Return the row of an artefact; what was measured has its figure, which its numbers do not suffice to draw."""
    measured = None if _decided_by_runs(result) else result.to_dict()
    if measured:
        measured["asked"] = _without_places(measured["asked"])
    if measured and figure.exists():
        measured[_DRAWN] = figure.read_text(encoding="utf-8")
    return {
        "hash": f"{result.id}/{result.budget}",
        "kind": _ARTEFACT,
        "config": {"id": result.id, "budget": result.budget},
        "result": measured,
        "outcome": "measured" if measured else "trained",
        "error": None,
        "versions": {},
        "seconds": result.seconds,
        "finished_at": result.provenance["date"],
        "machine": result.provenance["machine"],
    }


def _decided_by_runs(result: Reproduction) -> bool:
    """Whether runs alone decide a result again; others are stored.

    An artefact that is also shown images (`shown` in its settings) needs these, which a reader may not have.
    """
    return result.basis == "training" and "shown" not in result.asked["settings"]


@contextmanager
def rebuilt(path: Path) -> Iterator[Path]:
    """Make a temporary folder with the results of a file of `write_runs`: checks and figures without training.

    Raises:
        ResultError: the file is missing, damaged or of another kind.
        MissingRunsError: the file lacks runs of one of its artefacts.
    """
    with tempfile.TemporaryDirectory(prefix="normless-report-") as folder:
        out = Path(folder)
        trained = add_rows(path, out)
        with laboratory_in(out) as laboratory:
            for artefact, budget in trained:
                with names_of_data(path):
                    result = reproduce(artefact, budget, out=out, laboratory=laboratory, trains=False)
                if result.error:
                    raise MissingRunsError(f"{artefact} cannot be made from {path}: {result.error}")
        yield out


def add_rows(path: Path, out: Path, only: Collection[tuple[str, Budget]] | None = None) -> list[tuple[str, Budget]]:
    """Add the runs and measurements in a file of `write_runs` that a folder lacks; return the trained artefacts.

    `only` has the measurements to add, by artefact and budget; all if None.

    Raises:
        ResultError: the file is missing, damaged or of another kind.
    """
    rows = _read(path)
    artefacts = [(row["result"], *_asked(row["config"], path)) for row in rows if row["kind"] == _ARTEFACT]
    results = [
        _result_of(values, artefact, budget, path) for values, artefact, budget in artefacts if values is not None
    ]
    (out / "laboratory").mkdir(parents=True, exist_ok=True)
    with laboratory_in(out) as laboratory:
        laboratory.state.add([RunRow(**row) for row in rows if row["kind"] != _ARTEFACT])
    for result, drawn in results:
        wanted = only is None or (result.id, result.budget) in only
        if wanted and load(out, result.id, result.budget) is None:
            save(result, drawn, out)
    return [(artefact, budget) for values, artefact, budget in artefacts if values is None]


def _asked(config: Any, path: Path) -> tuple[str, Budget]:
    """Return the id and the budget of the row of an artefact; a ResultError for others than `write_runs` writes."""
    asked = config if isinstance(config, dict) and config.keys() == {"id", "budget"} else {"id": None, "budget": None}
    if asked["id"] not in [*published()] or asked["budget"] not in BUDGETS:
        raise ResultError(f"{path} asks for an artefact that normless report --runs does not write: {config!r}.")
    return asked["id"], asked["budget"]


def _result_of(values: Any, artefact: str, budget: Budget, path: Path) -> tuple[Reproduction, str | None]:
    """Return a stored result and the text of its figure; a ResultError if it is not of this artefact and budget."""
    result = Reproduction.from_dict(values)
    if (result.id, result.budget, result.entry) != (artefact, budget, None):
        raise ResultError(f"The row of {artefact} at {budget} in {path} has a result of {result.id}.")
    drawn = values.get(_DRAWN)
    if not isinstance(drawn, str | None):
        raise ResultError(f"The row of {artefact} at {budget} in {path} has a figure that is not text: {drawn!r}.")
    return result, drawn


def _read(path: Path) -> Sequence[dict[str, Any]]:
    try:
        table = read_table(path)
        rows = _rows(table[_COLUMNS])
        if [digest_of_values(row) for row in rows] != list(table[_DIGEST]):
            raise ValueError("it was damaged after it was written")
        read = [row | {name: row[name] and json.loads(row[name]) for name in _JSON} for row in rows]
        for row, (name, kind) in product(read, _KINDS.items()):
            if not isinstance(row[name], kind):
                raise ValueError(f"{name} of the run {row['hash']!r} is {row[name]!r}")
        return read
    except FileNotFoundError:
        raise ResultError(f"There is no file {path}; normless report DIR --runs {path} writes it.") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ResultError(f"{path} is not a file of runs as normless report --runs writes it: {error}") from error


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows


# Columns of a row that differ between equal runs.
_TIMED = ("seconds_per_epoch",)


@contextmanager
def merged(folders: Sequence[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Make a temporary folder of the results of several, and sentences about runs whose results differ.

    Of a run with several rows the one that finished first counts, a failed one only without others. Artefacts are
    made again from the rows, those of headlines at the budget of a card also where only all folders together have
    their runs; of those that train nothing the first folder's result counts.

    Raises:
        ResultError: a stored result cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="normless-report-") as name:
        out = Path(name)
        (out / "laboratory").mkdir()
        differing = _merge_rows(folders, out)
        asked: dict[tuple[str, Budget], dict[str, Any]] = {
            (artefact, "gpu"): {} for artefacts in claims_at("gpu").values() for artefact in artefacts
        }
        for folder in folders:
            for result in stored(folder):
                place = folder_of(out, result.id, result.budget)
                if not _decided_by_runs(result) and not place.exists():
                    shutil.copytree(folder_of(folder, result.id, result.budget), place)
                own = {key: value for key, value in result.asked.items() if key != "settings"}
                asked[result.id, result.budget] = asked.get((result.id, result.budget)) or own
        with laboratory_in(out) as laboratory:
            for (artefact, budget), options in asked.items():
                _remake(artefact, budget, out, laboratory, **options)
        yield out, differing


def _merge_rows(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the rows of all folders to one table; return sentences about differing results."""
    rows: dict[str, tuple[RunRow, Path]] = {}
    differing = []
    for folder in folders:
        with laboratory_in(folder) as laboratory:
            own = laboratory.state.read(laboratory.state.hashes())
        for name, row in own.items():
            if name not in rows:
                rows[name] = row, folder
                continue
            pairs = sorted([rows[name], (row, folder)], key=lambda pair: _order(pair[0]))
            rows[name] = pairs[0]
            if numbers := _difference(pairs[0][0], pairs[1][0]):
                differing.append(
                    f"Run {name[:8]} ended differently in {pairs[0][1]}, which counts, and {pairs[1][1]}: {numbers}."
                )
    with laboratory_in(out) as laboratory:
        laboratory.state.add([row for row, _ in rows.values()])
    return differing


def _order(row: RunRow) -> tuple[bool, str]:
    return row.outcome == "failed", row.finished_at


def _difference(first: RunRow, second: RunRow) -> str:
    """Return the columns in which two finished runs differ, with both values; empty if there are none."""
    if "failed" in (first.outcome, second.outcome):
        return ""
    both = zip(first.columns().items(), second.columns().values(), strict=True)
    texts = [(name, str(one), str(other)) for (name, one), other in both if name not in _TIMED]
    return ", ".join(f"{name} {one} and {other}" for name, one, other in texts if one != other)


def _remake(artefact: str, budget: Budget, out: Path, laboratory: Laboratory, **options: Any) -> None:
    """Make an artefact from the rows in a folder, or leave it out if some are missing."""
    if load(out, artefact, budget) is None:
        with names_of_data(f"The result of {artefact}"):
            result = reproduce(artefact, budget, out=out, laboratory=laboratory, trains=False, **options)
        if result.error:
            shutil.rmtree(folder_of(out, artefact, budget))
