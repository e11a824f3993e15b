"""However a run is interrupted or observed, it ends as one that was not, bit for bit on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from run_helpers import CONFIG as SHORT, Interrupt, without_seconds

from normless.probes import RideAlong, every
from normless_lab.train import EpochRow, TrainConfig, train
from normless_lab.train._pauses import TerminatedError, TimeLimitError
from normless_lab.train._run_listener import RunListener

STEPS, EPOCHS = 5, 3
# Dropout, mixup and the augmentation draw from generators; batch norm keeps running statistics.
CONFIG = TrainConfig(
    model=SHORT.model,
    data="digits(train=320, test=100)",
    batch_size=64,
    epochs=EPOCHS,
    dropout=0.3,
    mixup=0.4,
    flip=True,
    cutout=2,
    device="cpu",
)
Way = Callable[[TrainConfig, Path, pytest.MonkeyPatch], object]


class Steps(RunListener):
    """Collects the steps; sends SIGTERM to this process at one of them."""

    def __init__(self, terminated: int = 0) -> None:
        self.terminated = terminated
        self.seen: list[int] = []

    def on_step(self, step: int, loss: float) -> None:
        self.seen.append(step)
        if step == self.terminated:
            os.kill(os.getpid(), signal.SIGTERM)


class LastEpoch(RunListener):
    def on_epoch(self, row: EpochRow) -> None:
        if row.epoch == EPOCHS:
            raise KeyboardInterrupt


def stopped(error: type[BaseException], *listeners: RunListener, **how: Any) -> Way:
    """Train until an error."""

    def way(config: TrainConfig, folder: Path, _: pytest.MonkeyPatch) -> None:
        with pytest.raises(error) as caught:
            train(config, folder, listeners=listeners, **how)
        assert error is KeyboardInterrupt or "it is saved" in str(caught.value)

    return way


def interrupted(step: int, **how: Any) -> Way:
    return stopped(KeyboardInterrupt, Interrupt(step), **how)


def killed(config: TrainConfig, folder: Path, _: pytest.MonkeyPatch) -> None:
    program = f"""
import os, signal, sys, torch
from normless_lab.train import TrainConfig, train
from normless_lab.train._run_listener import RunListener
class Kill(RunListener):
    def on_step(self, step, loss):
        if step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
torch.set_num_threads({torch.get_num_threads()})
train(TrainConfig.from_dict({config.to_dict()!r}), sys.argv[1], listeners=[Kill()])
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["epoch"] == 1
    assert not (folder / "result.json").exists()


def flipped(config: TrainConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit of the checkpoint costs an epoch."""
    interrupted(2 * STEPS + 1)(config, folder, monkeypatch)
    data = bytearray((folder / "checkpoint.pt").read_bytes())
    data[len(data) // 2] ^= 4
    (folder / "checkpoint.pt").write_bytes(data)


# With the steps that are left.
WAYS: dict[str, tuple[Way, range]] = {
    "in the second epoch": (interrupted(8), range(6, 16)),
    "killed": (killed, range(6, 16)),
    "before the result": (stopped(KeyboardInterrupt, LastEpoch()), range(0)),
    "terminated": (stopped(TerminatedError, Steps(3)), range(4, 16)),
    "time limit": (stopped(TimeLimitError, time_limit="0.001s"), range(2, 16)),
    "saved every 2 steps": (interrupted(4, checkpoint_every="2 steps"), range(3, 16)),
    "bit flipped": (flipped, range(6, 16)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, without_seconds(train(CONFIG, folder))


def assert_same(folder: Path, other: Path) -> None:
    """The same weights, state of the optimizer and curves."""
    first, second = (torch.load(path / "checkpoint.pt", weights_only=True) for path in (folder, other))
    assert first["optimizer"]["state"]
    assert first["optimizer"]["param_groups"] == second["optimizer"]["param_groups"]
    torch.testing.assert_close(first["network"], second["network"], rtol=0, atol=0)
    torch.testing.assert_close(first["optimizer"]["state"], second["optimizer"]["state"], rtol=0, atol=0)
    for name in ("epochs", "steps"):
        one, two = (pd.read_parquet(path / f"{name}.parquet") for path in (folder, other))
        kept = [column for column in one.columns if column != "seconds"]
        assert list(one.columns) == list(two.columns)
        pd.testing.assert_frame_equal(one[kept], two[kept])


@pytest.mark.parametrize("name", WAYS)
def test_interrupted_and_resumed(
    name: str, whole: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, left = WAYS[name]
    handler = signal.getsignal(signal.SIGTERM)
    way(CONFIG, tmp_path, monkeypatch)
    assert signal.getsignal(signal.SIGTERM) is handler
    torch.manual_seed(1)  # What the caller's generator holds must not matter.
    rest = Steps()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = train(CONFIG, tmp_path, listeners=[rest])
    assert rest.seen == list(left)
    assert without_seconds(result) == whole[1]
    assert_same(tmp_path, whole[0])
    told = "".join(str(one.message) for one in said)
    assert ("checkpoint.pt was damaged" in told and "checkpoint.previous.pt" in told) == ("flipped" in name)


@pytest.mark.parametrize("text", ["AdamW(lr=0.01)", "NAdam(lr=0.01)"])
def test_other_optimizers_are_resumed(text: str, tmp_path: Path) -> None:
    settings = {
        "model": "normless:dense(depth=2, width=16)",
        "scheme": "none",
        "precision": "bf16-true",
        "optimizer": text,
    }
    config = TrainConfig.from_dict({"data": CONFIG.data, "epochs": 2, "batch_size": 64, "device": "cpu"} | settings)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", listeners=[Interrupt(7)])
    assert without_seconds(train(config, tmp_path / "parts")) == without_seconds(whole)
    assert_same(tmp_path / "parts", tmp_path / "whole")
    states = torch.load(tmp_path / "whole" / "checkpoint.pt", weights_only=True)["optimizer"]["state"]
    assert any("exp_avg" in values for values in states.values())


def test_a_run_that_is_measured_and_watched_is_the_run_it_was(whole: tuple[Path, Any], tmp_path: Path) -> None:
    ride = RideAlong(("signal", "gradients"), every(4))
    result = train(CONFIG, tmp_path, ride_along=ride, watch=True)
    assert without_seconds(result) == whole[1]
    assert_same(tmp_path, whole[0])
    for name in ride.probes:
        tables = [pd.read_parquet(path) for path in sorted((tmp_path / "probes" / name).iterdir())]
        assert list(pd.concat(tables)["step"].unique()) == [1, 5, 9, 13]
    # Three blocks at each of them.
    assert sum(len(pd.read_parquet(path)) for path in (tmp_path / "probes" / "signal").iterdir()) == 4 * 3
    assert not (whole[0] / "probes").exists()
    assert not (whole[0] / "findings.json").exists()
