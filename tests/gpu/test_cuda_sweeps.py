"""Runs side by side on one card are the single runs, whoever runs beside them and however those end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cuda_helpers import NEEDS_CARD, command_environment, config, normless_command, run, written
from lab_helpers import within

from normless_lab.sweeps import Laboratory, Sweep, SweepResult

pytestmark = NEEDS_CARD

FAILING = """
import torch
from torch import nn


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.calls = nn.Linear(64, 10), 0

    def forward(self, x):
        self.calls += self.training
        # In the first epoch, so that a further attempt, which goes on from the last checkpoint, comes here again.
        if self.calls == 2:
            torch.empty(1 << 47, dtype=torch.uint8, device=x.device)
        return self.head(x.flatten(1))
"""

# Runs of one data set and batch size, which may share a process, and some that may not.
CASES: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.5},
    "masks and mixup": {"scheme": "zeroinit(dropout=0.6)", "mixup": 0.5},
    "alternating": {"scheme": "alternating_batch_norm"},
    "ghosts": {"scheme": "ghost_batch_norm(size=12)", "clip": 0.02},
    "diverges": {"scheme": "none", "rate": 1e6},
    "longer": {"epochs": 5},
    "other batch": {"batch_size": 24},
    "other format": {"precision": "32-true"},
    "eager": {"dropout": 0.5, "graph": "never", "weight_decay": 0.001},
}


def sweep_file(folder: Path, cases: dict[str, dict[str, Any]]) -> Path:
    """A sweep with an axis of these cases, in float64 unless they say otherwise."""
    known = config().to_dict()
    names = ("model", "scheme", "data", "batch_size", "epochs", "precision", "device")
    base = {name: known[name] for name in names}
    described = {"name": "beside", "base": base, "axes": {"case": cases}, "rates": [0.05], "replicates": 1}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "beside.yaml"
    path.write_text(yaml.safe_dump(described))
    return path


def carried_out(file: Path, code: int = 0) -> SweepResult:
    """What `normless sweep run` leaves in a folder beside the file."""
    arguments = ["sweep", "run", str(file), "--out", str(file.parent / "out"), "--workers", "1", "--together", "6"]
    ended = normless_command(*arguments, timeout=300)
    assert ended.returncode == code, ended.stderr[-2000:]
    with Laboratory(file.parent / "out", workers=1) as laboratory:
        return laboratory.read(Sweep.from_yaml(file))


def assert_row_of_single_run(found: SweepResult, label: str, settings: dict[str, Any], folder: Path) -> None:
    """The rows of a run in a sweep, and of its epochs, are those of the same run by itself."""
    single = run(folder / label, **settings).result
    (row,) = found.runs[found.runs["case"] == label].to_dict("records")
    assert (row["hash"], row["outcome"], row["steps"]) == (single.config_hash, single.outcome, single.steps)
    if single.diverged_step is not None:
        assert row["diverged_step"] == single.diverged_step
        return
    rtol = 1e-3 if settings.get("precision") == "32-true" else 1e-7
    assert row["test_loss"] == pytest.approx(single.test_loss, rel=rtol)
    losses = found.epochs[found.epochs["case"] == label]["training_loss"].tolist()
    assert losses == pytest.approx([epoch.training_loss for epoch in single.epochs], rel=rtol)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """All cases in one sweep, with one that lacks memory in the middle."""
    folder = tmp_path_factory.mktemp("beside")
    nets = written(folder, FAILING)
    failing = {"model": f"{nets}:Failing", "scheme": "as_written", "decay_policy": "all"}
    return carried_out(sweep_file(folder, CASES | {"fails": failing}), code=1)


@pytest.mark.parametrize("label", CASES)
def test_rows_of_runs_side_by_side_are_those_of_single_runs(label: str, beside: SweepResult, tmp_path: Path) -> None:
    assert_row_of_single_run(beside, label, CASES[label], tmp_path)


def test_a_run_without_memory_fails_alone(beside: SweepResult) -> None:
    (row,) = beside.runs[beside.runs["case"] == "fails"].to_dict("records")
    assert (row["outcome"], "memory" in row["error"], beside.missing) == ("failed", True, 0)
    assert set(beside.runs["outcome"]) <= {"trained", "chance", "diverged", "failed"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told to end", "killed"])
def test_a_sweep_that_is_ended_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    """Ended while several runs are in flight in one process; each goes on from its own checkpoint."""
    cases = {name: CASES[name] | {"epochs": 20} for name in ("dropout", "alternating")}
    file = sweep_file(tmp_path, cases)
    arguments = ["sweep", "run", str(file), "--out", str(tmp_path / "out"), "--workers", "1"]
    arguments += ["--together", "4"]
    command, quiet = [sys.executable, "-m", "normless", *arguments], subprocess.DEVNULL
    with subprocess.Popen(command, env=command_environment(), stdout=quiet, stderr=quiet) as driver:
        # The page of a run reads the same files: the end of an epoch is a table of epochs.
        glob = (tmp_path / "out").glob
        assert within(60, lambda: driver.poll() is not None or [*glob("work/*/epochs.parquet")])
        assert driver.poll() is None, "the sweep was over before it could be ended"
        os.kill(driver.pid, how)
        code = driver.wait(30)
    assert code == (143 if how == signal.SIGTERM else -signal.SIGKILL)
    found = carried_out(file)
    assert found.missing == 0
    assert_row_of_single_run(found, "dropout", cases["dropout"], tmp_path / "single")
    assert_row_of_single_run(found, "alternating", cases["alternating"], tmp_path / "single")
