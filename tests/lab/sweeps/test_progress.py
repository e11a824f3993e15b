"""Progress of a laboratory: counts on a terminal's bar, lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from lab_helpers import Here, TinyConfig
from rich.console import Console

from normless_lab.sweeps import Laboratory, SweepProgress


@pytest.mark.parametrize("terminal", [True, False])
def test_finished_runs_are_counted_by_outcome(tmp_path: Path, terminal: bool) -> None:
    with Laboratory(tmp_path, executor=Here) as lab:
        rows = lab.carry_out([TinyConfig(seed=seed) for seed in range(2)])
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=terminal, color_system=None)
    with SweepProgress("depth", console) as progress:
        progress.on_begin(3, 1)
        progress.on_runs(rows)
        progress.on_runs([replace(rows[0], outcome="diverged")])
    lines = stream.getvalue().splitlines()
    if terminal:
        assert any("depth" in line and "4/4" in line and "2 trained, 1 diverged" in line for line in lines)
    else:
        assert lines[0] == "depth: 3 runs to carry out, 1 finished before"
        assert lines[-1] == "depth: 4 of 4 runs (2 trained, 1 diverged)"
