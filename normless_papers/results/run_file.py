"""The evidence in a folder as one Parquet file: rows of runs, and what was measured without training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from normless.saving import digest_of_values, replaced
from normless_lab.sweeps import MissingRunsError, PlannedLaboratory, RunRow
from normless_papers.pages.headline import DECIDING
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.reproduction import Reproduction, ResultError
from normless_papers.results.storage import save, stored

# The kind of the row of an artefact: its config has id and budget, its result what was measured without training.
_ARTEFACT = "artefact"
_COLUMNS = [column.name for column in fields(RunRow)]
_JSON = ("config", "result", "versions")
_DIGEST = "digest"


def write_runs(out: Path, path: Path) -> int:
    """Write the evidence in a folder, without trainings at smoke, to a Parquet file; return the number of runs."""
    kept = (result for result in stored(out) if result.budget in DECIDING or result.basis != "training")
    results = [result for result in kept if not result.error]
    with laboratory_in(out) as laboratory:
        runs = laboratory.state.read({name for result in results for name in result.runs})
    rows = [vars(runs[name]) for name in sorted(runs)] + [_artefact_row(result) for result in results]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for name in _JSON:
        table[name] = [None if value is None else json.dumps(value, ensure_ascii=False) for value in table[name]]
    table[_DIGEST] = [digest_of_values(row) for row in _rows(table)]
    with replaced(path) as part:
        table.to_parquet(part, index=False, compression="zstd", compression_level=19)
    return len(runs)


def _artefact_row(result: Reproduction) -> dict[str, Any]:
    """Return the row of an artefact; results of training are not stored, since their runs decide them again."""
    measured = None if result.basis == "training" else result.to_dict()
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


@contextmanager
def rebuilt(path: Path) -> Iterator[Path]:
    """Make a temporary folder with the results of a file of `write_runs`: checks and figures without training.

    Raises:
        ResultError: the file is missing, damaged or of another kind.
        MissingRunsError: the file lacks runs of one of its artefacts.
    """
    rows = _read(path)
    with tempfile.TemporaryDirectory(prefix="normless-report-") as folder:
        out = Path(folder)
        (out / "laboratory").mkdir()
        with PlannedLaboratory(out / "laboratory") as laboratory:
            laboratory.state.add([RunRow(**row) for row in rows if row["kind"] != _ARTEFACT])
            for row in rows:
                if row["kind"] == _ARTEFACT and row["result"] is not None:
                    save(Reproduction.from_dict(row["result"]), None, out)
                elif row["kind"] == _ARTEFACT:
                    result = reproduce(**row["config"], out=out, laboratory=laboratory)
                    if result.error:
                        raise MissingRunsError(f"{result.id} cannot be made from {path}: {result.error}")
        yield out


def _read(path: Path) -> Sequence[dict[str, Any]]:
    try:
        table = pd.read_parquet(path)
        rows = _rows(table[_COLUMNS])
        if [digest_of_values(row) for row in rows] != list(table[_DIGEST]):
            raise ValueError("it was damaged after it was written")
        return [row | {name: row[name] and json.loads(row[name]) for name in _JSON} for row in rows]
    except FileNotFoundError:
        raise ResultError(f"There is no file {path}; normless report DIR --runs {path} writes it.") from None
    except (ValueError, KeyError, OSError) as error:
        raise ResultError(f"{path} is not a file of runs as normless report --runs writes it: {error}") from error


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows
