"""All that the headline claims rest on as one Parquet file: rows of runs, and what was measured without training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from normless.errors import NormlessError
from normless.saving import digest_of_values, replaced
from normless_lab.sweeps import Laboratory, RunRow
from normless_papers.headline import DECIDING, headline_artefacts
from normless_papers.reproduce import laboratory_in, reproduce
from normless_papers.reproduction import Reproduction, ResultError
from normless_papers.storage import load, save

# The kind of a row that is an artefact: its config has id and budget, its result what was measured without training.
_ARTEFACT = "artefact"
_COLUMNS = [one.name for one in fields(RunRow)]
_JSON = ("config", "result", "versions")
_DIGEST = "digest"


class MissingRunsError(NormlessError):
    """A file of runs has not all that an artefact rests on; the message says which."""


def _no_workers() -> NoReturn:
    """In place of the processes that would train."""
    raise MissingRunsError("some of its training runs are not in the file.")


def write_runs(out: Path, path: Path) -> int:
    """Write what the headline claims rest on in a folder of results to a Parquet file; returns the number of runs."""
    there = (load(out, name, budget) for name in headline_artefacts() for budget in DECIDING)
    results = [one for one in there if one is not None and not one.error]
    with laboratory_in(out) as laboratory:
        runs = laboratory.state.read({name for one in results for name in one.runs})
    rows = [vars(runs[name]) for name in sorted(runs)] + [_artefact_row(one) for one in results]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for name in _JSON:
        table[name] = [None if value is None else json.dumps(value, ensure_ascii=False) for value in table[name]]
    table[_DIGEST] = [digest_of_values(row) for row in _rows(table)]
    with replaced(path) as part:
        table.to_parquet(part, index=False, compression="zstd", compression_level=19)
    return len(runs)


def _artefact_row(one: Reproduction) -> dict[str, Any]:
    """What its runs decide is decided anew; the rest is kept as it was measured."""
    measured = None if one.basis == "training" else one.to_dict()
    named, date = {"id": one.id, "budget": one.budget}, one.provenance["date"]
    empty: dict[str, Any] = {"outcome": "measured" if measured else "trained", "error": None, "versions": {}}
    own = {"seconds": one.seconds, "finished_at": date, "machine": one.provenance["machine"]}
    return {"hash": f"{one.id}/{one.budget}", "kind": _ARTEFACT, "config": named, "result": measured, **empty, **own}


@contextmanager
def rebuilt(path: Path) -> Iterator[Path]:
    """A temporary folder with the results of a file of `write_runs`: checks and figures by the rows, untrained.

    Raises:
        ResultError: it is no such file.
        MissingRunsError: it has not all runs that one of its artefacts rests on.
    """
    rows = _read(path)
    with tempfile.TemporaryDirectory(prefix="normless-report-") as folder:
        out = Path(folder)
        (out / "laboratory").mkdir()
        with Laboratory(out / "laboratory", executor=_no_workers) as laboratory:
            laboratory.state.add([RunRow(**row) for row in rows if row["kind"] != _ARTEFACT])
            for row in rows:
                if row["kind"] == _ARTEFACT and row["result"] is not None:
                    save(Reproduction.from_dict(row["result"]), None, out)
                elif row["kind"] == _ARTEFACT:
                    one = reproduce(**row["config"], out=out, laboratory=laboratory)
                    if one.error:
                        raise MissingRunsError(f"{one.id} cannot be made of {path}: {one.error}")
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
        raise ResultError(f"{path} is no file of runs as normless report --runs writes it: {error}") from error


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows
