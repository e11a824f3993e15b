"""Whole runs on the digits: outcomes, doubling, directories, and what they leave of the caller's state."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import yaml
from run_helpers import OnEpoch

from normless_lab.data import load_data
from normless_lab.train import RunResult, TrainConfig, train, trained_network
from normless_lab.train._run_listener import RunListener

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)", batch_size=64, epochs=2, rate=0.1, crop=0, device="cpu"
)
SHORT = replace(CONFIG, batch_size=512, epochs=1)
NO_CARD = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


class Losses(RunListener):
    """Records the loss of each step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_step(self, step: int, loss: float) -> None:
        self.losses[step] = loss


def test_a_run_that_trains(tmp_path: Path) -> None:
    note, seen = Losses(), []
    result = train(CONFIG, tmp_path, listeners=[note, OnEpoch(seen.append)])
    assert result.outcome == "trained"
    assert result.test_accuracy > 0.5
    assert (result.diverged_epoch, result.diverged_step) == (None, None)
    assert tuple(seen) == result.epochs
    assert result.steps == 44
    assert list(note.losses) == list(range(1, 45))
    assert result.seconds_per_epoch == pytest.approx(sum(row.seconds for row in result.epochs) / 2)
    assert result.config_hash == CONFIG.hash

    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert steps["loss"].tolist() == list(note.losses.values())
    assert steps["step"].tolist() == list(note.losses)
    assert steps["epoch"].tolist() == [1] * 22 + [2] * 22
    for row in result.epochs:
        assert row.training_loss == pytest.approx(steps[steps["epoch"] == row.epoch]["loss"].mean(), rel=1e-6)
    assert TrainConfig.from_dict(yaml.safe_load((tmp_path / "config.yaml").read_text())) == CONFIG
    assert RunResult.from_dict(json.loads((tmp_path / "result.json").read_text())) == result


def test_the_test_figures_are_those_of_the_trained_network(tmp_path: Path) -> None:
    result = train(SHORT, tmp_path)
    network, data = trained_network(tmp_path), load_data("digits")
    assert not network.training
    right = top = 0
    losses = []
    with torch.no_grad():
        for inputs, labels in data.test_batches(1):
            logits = network(inputs)
            right += int(logits.argmax()) == int(labels)
            top += int(labels) in logits.topk(5).indices
            losses.append(float(F.cross_entropy(logits, labels)))
    assert result.test_accuracy == right / data.test_size
    assert result.test_accuracy_top5 == top / data.test_size
    assert result.test_loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert result.parameters == sum(p.numel() for p in network.parameters())


def test_a_run_that_diverges_stops_at_once(tmp_path: Path) -> None:
    config = replace(CONFIG, scheme="none", rate=1e3)
    result = train(config, tmp_path)
    assert result.outcome == "diverged"
    losses = pd.read_parquet(tmp_path / "steps.parquet")["loss"].tolist()
    assert all(math.isfinite(loss) and loss <= 1e3 for loss in losses[:-1])
    assert not (math.isfinite(losses[-1]) and losses[-1] <= 1e3)
    assert result.diverged_step == result.steps == len(losses)
    assert result.diverged_epoch == 1
    assert result.epochs == ()
    assert 0 <= result.test_accuracy <= 1
    assert result.seconds_per_epoch > 0
    assert result.plateaued is None
    assert repr(train(config, tmp_path)) == repr(result)  # NaN differs from itself, its name does not


def test_the_seed_decides_the_run_and_the_callers_state_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    losses = [
        train(replace(SHORT, seed=seed, dropout=0.5, precision="64-true"), tmp_path / name).epochs[0].training_loss
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"scheme": "magic"}, "There is no scheme 'magic'"),
    ({"scheme": "zeroinit", "dropout": 0.5}, "has a dropout of its own, so dropout=0.5 would be a second"),
    ({"devices": 2}, "Expected 2 processes for devices=2, but 1 runs this. Start it with: torchrun"),
    ({"sync_batch_norm": True, "devices": 2}, "Expected CUDA devices for sync_batch_norm=True with devices=2"),
    pytest.param({"device": "cuda"}, "needs a CUDA device, and torch finds none", marks=NO_CARD),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES)
def test_mistakes_leave_no_files(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train(TrainConfig.from_dict(SHORT.to_dict() | change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_losses_looked_at_together_are_cut_at_the_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator does, done here: the record is the same although steps followed."""
    from normless_lab.train import _loop as loop

    config = replace(CONFIG, scheme="none", rate=1e3)
    at_once = train(config, tmp_path / "at-once")
    monkeypatch.setattr(loop, "reads_at_once", lambda fabric: False)
    monkeypatch.setattr(loop, "STEPS_BETWEEN_READS", 4)
    together = train(config, tmp_path / "together")
    assert together.diverged_step == at_once.diverged_step
    tables = [pd.read_parquet(tmp_path / name / "steps.parquet") for name in ("at-once", "together")]
    pd.testing.assert_frame_equal(*tables)
