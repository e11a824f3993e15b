"""One folder of results from several: rows of all machines, and the artefacts that they complete together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normless.code_names import names_of_data
from normless_lab.sweeps import Laboratory, RunRow
from normless_papers.budgets import Budget
from normless_papers.planning.plan import claims_at
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.storage import folder_of, load, stored

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
                if result.basis != "training" and not place.exists():
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
