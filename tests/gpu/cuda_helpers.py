"""What the tests on a CUDA card share: runs by their settings, kept for the session, and comparisons of two runs.

`NORMLESS_GPU_TESTS_DEVICE=cpu` runs the same tests without a card, which checks their calls and not the card.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import normless
from normless_lab.train import RunResult, TrainConfig, train, trained_network
from normless_lab.train._run_listener import RunListener

DEVICE = os.environ.get("NORMLESS_GPU_TESTS_DEVICE", "cuda")
ON_CARD = DEVICE == "cuda"

NEEDS_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_CARD and not torch.cuda.is_available(), reason="needs a CUDA card"),
]
ONLY_ON_CARD = pytest.mark.skipif(not ON_CARD, reason="looks at what only a card does")

NETWORK = "normless:wide_resnet(depth=10, width=1)"
SETTINGS: dict[str, Any] = {
    "model": NETWORK,
    "scheme": "skipinit",
    "data": "digits(train=200, test=50)",  # six whole batches; the test set leaves a part of a batch
    "batch_size": 32,
    "epochs": 3,
    "rate": 0.05,
    "precision": "64-true",
    "device": DEVICE,
}


def config(**settings: Any) -> TrainConfig:
    """A run of eighteen steps in float64 with these settings."""
    return TrainConfig(**SETTINGS | settings)


@dataclass(frozen=True)
class Finished:
    """A finished run, with the loss of every step and its last weights and buffers."""

    result: RunResult
    losses: list[float]
    state: dict[str, Tensor]
    folder: Path


def losses_of(folder: Path) -> list[float]:
    """The loss of every step of a finished run."""
    table = pd.read_parquet(folder / "steps.parquet")
    assert table["step"].tolist() == list(range(1, len(table) + 1)), "steps are missing, doubled or out of order"
    return table["loss"].tolist()


def finished(folder: Path, result: RunResult) -> Finished:
    """What the files of a finished run hold."""
    # There is no checkpoint before the first epoch's end.
    state = trained_network(folder).state_dict() if result.epochs else {}
    return Finished(result, losses_of(folder), state, folder)


def run(folder: Path, *, listeners: tuple[RunListener, ...] = (), **settings: Any) -> Finished:
    """Execute a run in a new folder, with `config`'s settings."""
    shutil.rmtree(folder, ignore_errors=True)
    return finished(folder, train(config(**settings), folder, listeners=listeners))


def assert_same_run(a: Finished, b: Finished, rtol: float = 1e-6, *, atol: float = 1e-9) -> None:
    """Two runs have the same steps, losses, weights, buffers, rows and outcome, up to rounding."""
    kept = ("outcome", "steps", "parameters", "diverged_epoch", "diverged_step", "plateaued")
    assert {k: getattr(a.result, k) for k in kept} == {k: getattr(b.result, k) for k in kept}
    assert len(a.losses) == len(b.losses)
    approximately(a.losses, b.losses, rtol, atol)
    assert a.state.keys() == b.state.keys()
    for name, value in a.state.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, b.state[name], rtol=rtol, atol=max(atol, rtol), equal_nan=True)
        else:
            assert torch.equal(value, b.state[name]), f"{name}: {value} is not {b.state[name]}"
    for row, other in zip(a.result.epochs, b.result.epochs, strict=True):
        assert_same_row(row, other, rtol)


def assert_same_row(row: Any, other: Any, rtol: float) -> None:
    """Two rows of an epoch are equal up to rounding, their seconds aside."""
    for field in fields(row):
        if field.name != "seconds":
            ours, theirs = getattr(row, field.name), getattr(other, field.name)
            # One test example of 50 may change sides between two classes by rounding alone.
            atol = 0.021 if "accuracy" in field.name else 1e-9
            approximately(ours, theirs, rtol, atol, field.name)


def approximately(a: Any, b: Any, rtol: float, atol: float = 1e-9, what: str = "") -> None:
    """Equal up to rounding; infinite and undefined numbers at the same places."""
    if a is None or b is None:
        assert a is b, what
    else:
        assert a == pytest.approx(b, rel=rtol, abs=atol, nan_ok=True), what


class Replays:
    """Count the replays of CUDA graphs in this process, however they are captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.count += 1
            replay(graph)

        monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)


def normless_command(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line with this very package, wherever the test is run."""
    command, environment = [sys.executable, "-m", "normless", *arguments], command_environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def command_environment() -> dict[str, str]:
    """The environment in which a process imports the package that the tests import."""
    places = [str(Path(normless.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}


def written(folder: Path, text: str) -> Path:
    """A file of user networks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nets.py"
    path.write_text(text)
    return path
