"""Progress of a laboratory: finished runs are counted by outcome."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from lab_helpers import Here, TinyConfig
from rich.console import Console

from normless_lab.sweeps import Laboratory, SweepProgress


def test_finished_runs_are_counted_by_outcome(tmp_path: Path) -> None:
    with Laboratory(tmp_path, executor=Here) as lab:
        rows = lab.carry_out([TinyConfig(seed=seed) for seed in range(2)])
    stream = io.StringIO()
    with SweepProgress("depth", Console(file=stream, width=120)) as progress:
        progress.on_begin(3, 1)
        progress.on_runs(rows)
        progress.on_runs([replace(rows[0], outcome="diverged")])
    assert "4 of 4 runs (2 trained, 1 diverged)" in stream.getvalue().splitlines()[-1]
