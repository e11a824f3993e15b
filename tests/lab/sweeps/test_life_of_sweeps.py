"""Sweeps whose files change, whose runs cannot start, that are stopped, or that share their work by shards."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lab_helpers import Here, within

from normless_lab.sweeps import Laboratory, RateGrid, RunState, Sweep, axis_of
from normless_lab.sweeps._store import sqlite_url
from normless_lab.sweeps._sweep import SweepError

WIDE = "normless:wide_resnet(depth=10, width=1)"
NETWORK = """
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 10))
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(NETWORK.format(width=8))
    return file


def _sweep(model: str, **changes: Any) -> Sweep:
    base = {"model": model, "batch_size": 512, "epochs": 1, "crop": 0, "flip": False, "device": "cpu"}
    usual: dict[str, Any] = {"name": "small", "base": base | {"scheme": "as_written"}, "axes": {}, "best": 1}
    return Sweep(**usual | {"rates": RateGrid((0.1,), None), "replicates": 1} | changes)


def test_a_changed_file_gives_new_rows(tmp_path: Path, network: Path) -> None:
    sweep, here = _sweep(f"{network}:network"), Here()
    with Laboratory(tmp_path / "lab", executor=lambda: here) as lab:
        first = lab.run(sweep).runs
        assert lab.run(sweep).runs.equals(first)
        network.write_text(NETWORK.format(width=16))
        second = lab.run(sweep).runs
        assert int(second["parameters"][0]) > int(first["parameters"][0])
        network.write_text(NETWORK.format(width=8))
        assert lab.run(sweep).runs.equals(first)


def test_runs_that_cannot_start_are_told_before_the_first(tmp_path: Path) -> None:
    models = axis_of("model", [WIDE, "normless:wide_resnet(depth=11)"])
    sweep = _sweep(WIDE, axes={"scheme": axis_of("scheme", ["batch_norm", "skpinit"]), "model": models})
    here = Here()
    with Laboratory(tmp_path / "lab", executor=lambda: here) as lab:
        with pytest.raises(SweepError, match="No run was begun") as told:
            lab.run(sweep)
        assert not lab.state.hashes()
    for word in ("skpinit", "depth", "wide_resnet(depth=11) with batch_norm on digits"):
        assert word in str(told.value)
    assert len(here.carried_out) == 4, "each data, network and scheme once"
    assert not list((tmp_path / "lab").rglob("config.yaml"))


def test_a_time_limit_of_runs_is_a_failure_to_go_on_with(tmp_path: Path) -> None:
    sweep = _sweep(WIDE, time_limit="0.001s")
    sweep = replace(sweep, base={**sweep.base, "scheme": "batch_norm"})
    here, parts = Here(), 0
    with Laboratory(tmp_path / "lab", executor=lambda: here) as lab:
        while True:
            parts += 1
            (row,) = lab.run(sweep).runs.to_dict("records")
            if row["outcome"] != "failed":
                break
            assert "TimeLimitError: The run reached its time limit after step" in row["error"]
            lab.state.remove([row["hash"]])
    assert parts == 2, "of two steps"
    assert Sweep.from_dict(sweep.to_dict()) == sweep


@pytest.mark.slow
def test_sigterm_to_the_driver_saves_its_runs(tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    base = {"model": WIDE, "epochs": 300, "device": "cpu", "batch_size": 8}
    file.write_text(yaml.safe_dump({"name": "long", "base": base, "rates": [0.1], "replicates": 1}))
    command = [sys.executable, "-m", "normless", "sweep", "run", str(file), "--out", str(out), "--workers", "1"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert within(60, lambda: [*out.glob("work/*/checkpoint.pt")])
    driver.send_signal(signal.SIGTERM)
    _, told = driver.communicate(timeout=30)
    assert driver.returncode == 143, told
    assert "normless: The sweep was told to end (SIGTERM)" in told
    assert "Traceback" not in told
    (checkpoint,) = out.glob("work/*/checkpoint.pt")
    # Only a run that was told to end has a checkpoint within an epoch.
    assert torch.load(checkpoint, weights_only=True)["within"] is not None
    with RunState(sqlite_url(out / "runs.sqlite")) as state:
        assert not state.hashes()
