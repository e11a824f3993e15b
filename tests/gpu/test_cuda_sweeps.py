"""Runs side by side on one card are the single runs, whoever runs beside them and however those end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from cuda_helpers import DEVICE, NEEDS_CARD, command_environment, config, normless_command, run, with_flag, written
from lab_helpers import within

from normless_lab.sweeps import Laboratory, Sweep, SweepResult

pytestmark = NEEDS_CARD

FAILING = """
import torch
from torch import nn


class Failing(nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.branch, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
        self.calls, self.memory = 0, memory

    def forward(self, x):
        self.calls += self.training
        # In the first epoch, so that a further attempt, which goes on from the last checkpoint, comes here again.
        if self.calls == 2 and self.memory:
            torch.empty(1 << 47, dtype=torch.uint8, device=x.device)
        if self.calls == 8:
            raise OverflowError("too many calls")
        x = x.flatten(1)
        return self.head(x + self.branch(x))


def raises():
    return Failing(False)


def exhausts():
    return Failing(True)
"""

# Runs of one data set and batch size, which may share a process, and some that may not.
CASES: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.5},
    "masks and mixup": {"scheme": "zeroinit(dropout=0.6)", "mixup": 0.5},
    "batch norm": {"scheme": "batch_norm", "model": "normless:wide_resnet(depth=16, width=1)"},
    "alternating": {"scheme": "alternating_batch_norm"},
    "ghosts": {"scheme": "ghost_batch_norm(size=12)", "clip": 0.02},
    "cosine": {"scheme": "fixup", "schedule": "cosine", "warmup_epochs": 1, "scalar_rate_scale": 0.1},
    "diverges": {"scheme": "none", "rate": 1e6},
    "longer": {"epochs": 5},
    "shorter": {"epochs": 1},
    "other batch": {"batch_size": 24},
    "other data": {"data": "digits(train=100, test=33)"},
    "other format": {"precision": "32-true"},
    "eager": {"dropout": 0.5, "graph": "never", "weight_decay": 0.001},
}
FAILURES = ("raises", "exhausts")
SEEDS = (0,)


def sweep_file(folder: Path, cases: dict[str, dict[str, Any]], **further: Any) -> Path:
    """A sweep with an axis of these cases, in float64 unless they say otherwise."""
    known = config().to_dict()
    names = ("model", "scheme", "data", "batch_size", "epochs", "precision", "device")
    base = {name: known[name] for name in names}
    axis = {
        label: {name: value for name, value in settings.items() if name in known or DEVICE == "cuda"}
        for label, settings in cases.items()
    }
    described = {"name": "beside", "base": base, "axes": {"case": axis}, "rates": [0.05], "replicates": len(SEEDS)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "beside.yaml"
    path.write_text(yaml.safe_dump(described | further))
    return path


def carried_out(file: Path, together: str = "6", code: int = 0) -> SweepResult:
    """What `normless sweep run` leaves in a folder beside the file."""
    flags = with_flag("sweep run", "--together", together)
    arguments = ["sweep", "run", str(file), "--out", str(file.parent / "out"), "--workers", "1", *flags]
    ended = normless_command(*arguments, timeout=300)
    assert ended.returncode == code, ended.stderr[-2000:]
    return tables(file)


def tables(file: Path) -> SweepResult:
    """The rows of the finished runs."""
    with Laboratory(file.parent / "out", workers=1) as laboratory:
        return laboratory.read(Sweep.from_yaml(file))


def assert_row_of_single_run(found: SweepResult, label: str, settings: dict[str, Any], folder: Path) -> None:
    """The rows of a run in a sweep, and of its epochs, are those of the same run by itself."""
    for seed in SEEDS:
        single = run(folder / f"{label}-{seed}", **settings, seed=seed).result
        chosen = found.runs[(found.runs["case"] == label) & (found.runs["seed"] == seed)]
        assert len(chosen) == 1
        row = chosen.iloc[0]
        assert row["hash"] == single.config_hash
        assert (row["outcome"], row["steps"]) == (single.outcome, single.steps)
        assert pd.isna(row["diverged_step"]) == (single.diverged_step is None)
        if single.diverged_step is not None:
            assert row["diverged_step"] == single.diverged_step
            continue
        rtol = 1e-3 if settings.get("precision") == "32-true" else 1e-7
        assert row["test_loss"] == pytest.approx(single.test_loss, rel=rtol)
        assert row["test_accuracy"] == pytest.approx(single.test_accuracy, abs=0.041)
        epochs = found.epochs[(found.epochs["case"] == label) & (found.epochs["seed"] == seed)]
        losses = [epoch.training_loss for epoch in single.epochs]
        assert epochs["training_loss"].tolist() == pytest.approx(losses, rel=rtol)
        assert row["seconds_per_epoch"] > 0


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """All cases in one sweep, with two that fail in the middle."""
    folder = tmp_path_factory.mktemp("beside")
    nets = written(folder, FAILING)
    failing = {name: {"model": f"{nets}:{name}", "scheme": "as_written", "decay_policy": "all"} for name in FAILURES}
    return carried_out(sweep_file(folder, CASES | failing), code=1)


@pytest.mark.parametrize("label", CASES)
def test_rows_of_runs_side_by_side_are_those_of_single_runs(label: str, beside: SweepResult, tmp_path: Path) -> None:
    assert_row_of_single_run(beside, label, CASES[label], tmp_path)


@pytest.mark.parametrize(("label", "words"), [("raises", "too many calls"), ("exhausts", "memory")])
def test_a_run_that_fails_leaves_alone(label: str, words: str, beside: SweepResult) -> None:
    rows = beside.runs[beside.runs["case"] == label]
    assert rows["outcome"].tolist() == ["failed"] * len(SEEDS)
    assert all(words in error for error in rows["error"])
    assert beside.missing == 0
    assert set(beside.runs["outcome"]) <= {"trained", "chance", "diverged", "failed"}


FEW = {name: CASES[name] for name in ("dropout", "alternating", "diverges")}


def test_one_at_a_time_and_more_than_there_are_have_the_same_rows(tmp_path: Path) -> None:
    alone = carried_out(sweep_file(tmp_path / "alone", FEW), together="1")
    many = carried_out(sweep_file(tmp_path / "many", FEW), together="64")
    columns = ["case", "seed", "outcome", "steps", "hash"]
    assert many.runs[columns].to_dict("list") == alone.runs[columns].to_dict("list")
    kept = alone.runs["outcome"] != "diverged"
    for column in ("test_loss", "training_loss", "training_loss_with_l2"):
        assert many.runs[column][kept].tolist() == pytest.approx(alone.runs[column][kept].tolist(), rel=1e-7)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told to end", "killed"])
def test_a_sweep_that_is_ended_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    """Ended while several runs are in flight in one process; each goes on from its own checkpoint."""
    cases = {name: CASES[name] | {"epochs": 20} for name in ("dropout", "alternating")}
    file = sweep_file(tmp_path, cases)
    arguments = ["sweep", "run", str(file), "--out", str(tmp_path / "out"), "--workers", "1"]
    arguments += with_flag("sweep run", "--together", "4")
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


def test_from_python_a_laboratory_has_the_same_rows_and_keeps_weights(tmp_path: Path) -> None:
    """Without a number it chooses how many run side by side."""
    file = sweep_file(tmp_path, {"dropout": CASES["dropout"]}, keep_weights=True)
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nfrom pathlib import Path\nfrom normless_lab.sweeps import Laboratory, Sweep\n"
        "from normless_lab.train import trained_network\n"
        "if __name__ == '__main__':\n"
        "    sweep = Sweep.from_yaml(sys.argv[1])\n"
        "    with Laboratory(Path(sys.argv[1]).parent / 'out', workers=1) as lab:\n"
        "        result = lab.run(sweep)\n"
        "    folders = sorted(Path(sys.argv[1]).parent.glob('out/weights/*'))\n"
        "    devices = {p.device.type for f in folders for p in trained_network(f).parameters()}\n"
        "    print(json.dumps([result.missing, len(folders), sorted(devices)]))\n"
    )
    command, environment = [sys.executable, str(script), str(file)], command_environment()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == [0, len(SEEDS), ["cpu"]]
    assert_row_of_single_run(tables(file), "dropout", CASES["dropout"], tmp_path / "single")
