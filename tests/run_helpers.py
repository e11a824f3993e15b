"""An interruption of a run, a run by two processes, and the comparison of two directories of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from normless_lab.train import RunConfig, TrainConfig, train
from normless_lab.train._run_files import load_weights
from normless_lab.train._run_listener import RunListener

# A training of two epochs of two steps.
CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    data="digits(train=128, test=64)",
    batch_size=64,
    epochs=2,
    device="cpu",
)


class Interrupt(RunListener):
    """Ends the run at a step, as Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step: int, loss: float) -> None:
        if step == self.at:
            raise KeyboardInterrupt


class OnEpoch(RunListener):
    """Calls a function with the row of every epoch."""

    def __init__(self, call: Callable[[Any], object]) -> None:
        self.call = call

    def on_epoch(self, row: Any) -> None:
        self.call(row)


def two_processes(program: str, folder: Path, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program, whose argument is `folder/two`, by two processes of torchrun, which may start them again."""
    (folder / "program.py").write_text(program)
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, folder / "program.py", folder / "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def without_seconds(result: Any) -> Any:
    rows = tuple(replace(row, seconds=0.0) for row in result.epochs)
    return replace(result, seconds_per_epoch=0.0, epochs=rows)


def assert_same_run(
    folder: Path, reference: Path, epochs: int, moments: set[str], files: tuple[str, ...] = ()
) -> None:
    """Two directories have the same weights, state of the optimizer, curves and files."""
    first, second = (torch.load(path / "checkpoint.pt", weights_only=True) for path in (folder, reference))
    assert first["epoch"] == second["epoch"] == epochs
    assert list(first["network"]) == list(second["network"])
    for name, value in first["network"].items():
        assert torch.equal(value, second["network"][name]), name
    states, others = first["optimizer"]["state"], second["optimizer"]["state"]
    assert list(states) == list(others)
    for key, state in states.items():
        assert set(state) == moments
        assert all(torch.equal(value, others[key][name]) for name, value in state.items())
    tables = [pd.read_parquet(path / "epochs.parquet").drop(columns="seconds") for path in (folder, reference)]
    pd.testing.assert_frame_equal(*tables)
    pd.testing.assert_frame_equal(*(pd.read_parquet(path / "steps.parquet") for path in (folder, reference)))
    for name in files:
        assert (folder / name).read_bytes() == (reference / name).read_bytes()


def assert_two_processes_are_one(config: RunConfig, folder: Path) -> None:
    """Two processes that share every batch of a run in double precision end as one process does."""
    kind = type(config)
    done = two_processes(
        f"import sys\nfrom {kind.__module__} import {kind.__name__}\nfrom normless_lab.train import train\n"
        f"train({kind.__name__}.from_dict({replace(config, devices=2).to_dict()!r}), sys.argv[1])\n",
        folder,
    )
    assert done.returncode == 0, done.stderr
    alone: Any = train(config, folder / "one")
    shared_run = json.loads((folder / "two" / "result.json").read_text())
    expected = alone.to_dict()
    for actual, wanted in ((shared_run.pop("epochs")[0], expected.pop("epochs")[0]), (shared_run, expected)):
        for name, value in wanted.items():
            if isinstance(value, float) and "seconds" not in name:
                assert actual[name] == pytest.approx(value, rel=1e-7), name
    assert shared_run["steps"] == alone.steps
    steps = [pd.read_parquet(folder / name / "steps.parquet")["loss"] for name in ("one", "two")]
    assert steps[1].tolist() == pytest.approx(steps[0].tolist(), rel=1e-9)
    whole, shared = (load_weights(folder / name / "checkpoint.pt") for name in ("one", "two"))
    for name, value in whole.items():
        torch.testing.assert_close(value, shared[name], rtol=1e-7, atol=1e-9)
