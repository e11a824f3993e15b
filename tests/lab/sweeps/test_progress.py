"""Progress of a laboratory with a line per run: text on a terminal's bar, plain lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from lab_helpers import Here, TinyConfig
from rich.console import Console

from normless_lab.sweeps import Laboratory, RunRow, SweepProgress


@pytest.fixture
def rows(tmp_path: Path) -> list[RunRow]:
    with Laboratory(tmp_path, executor=Here) as lab:
        return lab.carry_out([TinyConfig(seed=seed) for seed in range(2)])


def test_lines_describe_every_run(rows: list[RunRow]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=40)
    with SweepProgress(
        "first epoch", console, describe=lambda row: f"seed {row.config['seed']}: loss 1.928"
    ) as progress:
        progress.on_begin(2, 1)
        progress.on_runs(rows)
        progress.on_runs([replace(rows[0], outcome="diverged")])
    assert stream.getvalue().splitlines() == [
        "first epoch: 2 runs to carry out, 1 finished before",
        "first epoch: seed 0: loss 1.928",
        "first epoch: seed 1: loss 1.928",
        "first epoch: seed 0: loss 1.928",
    ]


def test_a_terminal_shows_the_last_run_beside_the_bar(rows: list[RunRow]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system=None)
    with SweepProgress("first epoch", console, describe=lambda row: f"seed {row.config['seed']}") as progress:
        progress.on_begin(3, 0)
        progress.on_runs(rows)
    lines = stream.getvalue().splitlines()
    assert any("first epoch" in line and "2/3" in line and "seed 1" in line for line in lines)
