"""A run that was interrupted ends as one that was not, bit for bit on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from run_helpers import Interrupt, assert_same_run, without_seconds
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from normless_lab.train import EpochRow, RunListener, RunResult, TrainConfig, train
from normless_lab.train import training_run as run_module

STEPS = 5  # 1437 digits in batches of 256
CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    batch_size=256,
    epochs=3,
    dropout=0.3,
    mixup=0.4,
    flip=True,
    cutout=2,
    device="cpu",
)


def state(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(directory / "checkpoint.pt", weights_only=True)
    return loaded


def epochs(directory: Path) -> pd.DataFrame:
    return pd.read_parquet(directory / "epochs.parquet").drop(columns="seconds")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, train(CONFIG, directory)


@pytest.mark.parametrize("at", [2, STEPS + 3, 2 * STEPS + 1])
def test_interrupted_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, RunResult], at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, listeners=[Interrupt(at)])
    torch.manual_seed(at)  # what the caller's generator holds must not matter
    seen: list[int] = []
    result = train(CONFIG, tmp_path, on_epoch=lambda row: seen.append(row.epoch))
    assert seen == list(range((at - 1) // STEPS + 1, 4))
    assert without_seconds(result) == without_seconds(uninterrupted[1])
    assert_same_run(tmp_path, uninterrupted[0], CONFIG.epochs, {"momentum_buffer"})


def test_killed_by_sigkill_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, RunResult]) -> None:
    program = f"""
import os, signal, sys, torch
from normless_lab.train import RunListener, TrainConfig, train
class Kill(RunListener):
    def on_step(self, step, loss):
        if step == {STEPS + 3}:
            os.kill(os.getpid(), signal.SIGKILL)
torch.set_num_threads({torch.get_num_threads()})
train(TrainConfig.from_dict({CONFIG.to_dict()!r}), sys.argv[1], listeners=[Kill()])
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert state(tmp_path)["epoch"] == 1
    assert not (tmp_path / "result.json").exists()
    result = train(CONFIG, tmp_path)
    assert without_seconds(result) == without_seconds(uninterrupted[1])
    assert_same_run(tmp_path, uninterrupted[0], CONFIG.epochs, {"momentum_buffer"})


@pytest.mark.parametrize("before", [True, False])
def test_killed_around_saving(
    tmp_path: Path, uninterrupted: tuple[Path, RunResult], monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The tables are written before the checkpoint: their extra rows are not counted twice."""
    real = run_module.save_checkpoint

    def interrupted(*arguments: Any) -> None:
        if not before:
            real(*arguments)
        if arguments[-1] == 2:
            raise KeyboardInterrupt
        if before:
            real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, tmp_path)
    assert len(epochs(tmp_path)) == 2
    assert state(tmp_path)["epoch"] == (1 if before else 2)
    train(CONFIG, tmp_path)
    assert_same_run(tmp_path, uninterrupted[0], CONFIG.epochs, {"momentum_buffer"})


def test_killed_between_the_last_epoch_and_the_result(
    tmp_path: Path, uninterrupted: tuple[Path, RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    class LastEpoch(RunListener):
        def on_epoch(self, row: EpochRow) -> None:
            if row.epoch == CONFIG.epochs:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, listeners=[LastEpoch()])
    monkeypatch.setattr(run_module, "train_epoch", None)  # nothing is trained any more
    assert without_seconds(train(CONFIG, tmp_path)) == without_seconds(uninterrupted[1])


def test_tensorboard_shows_every_step_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, listeners=[Interrupt(STEPS + 3)])
    result = train(CONFIG, tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 3 * STEPS + 1))
    shown = events.Scalars("epoch/test_accuracy")
    assert [event.step for event in shown] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [event.value for event in shown] == pytest.approx([row.test_accuracy for row in result.epochs], rel=1e-6)
