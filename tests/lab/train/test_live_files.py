"""What a run writes of an epoch under way, and a watched run: the run it was, with its findings in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from normless.doctor.watch._watch import WatchWarning
from normless_lab.train import TrainConfig, _run_listener as module, train
from normless_lab.train._run_listener import RunListener

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="batch_norm",
    batch_size=32,
    epochs=2,
    rate=2.0,
    device="cpu",
)


class Reader(RunListener):
    """Reads the losses of the unfinished epoch before each step's are written."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, dict[int, list[list[float]]]()

    def on_step(self, step: int, loss: float) -> None:
        text = self.path.read_text() if self.path.exists() else ""
        self.seen[step] = [[float(one) for one in line.split(",")] for line in text.splitlines()]


def test_losses_of_the_unfinished_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    reader = Reader(tmp_path / "unfinished.csv")
    train(replace(CONFIG, batch_size=256, rate=0.1), tmp_path, listeners=[reader])
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    for step, seen in reader.seen.items():
        # Five steps an epoch.
        first = (step - 1) // 5 * 5 + 1
        expected = steps[(steps["step"] >= first) & (steps["step"] < step)]
        assert [at for at, _ in seen] == pytest.approx([at / 5 for at in expected["step"]])
        assert [loss for _, loss in seen] == pytest.approx(list(expected["loss"]), rel=1e-5)
    assert len(reader.seen) == 10
    assert not (tmp_path / "unfinished.csv").exists()


def test_a_divergence_within_the_first_steps_is_a_finding(tmp_path: Path) -> None:
    """The first forward pass is beyond what a float has."""
    scheme = "none(keep_scale=False)"
    config = replace(CONFIG, model="normless:wide_resnet(depth=64, width=1)", scheme=scheme, rate=0.1, epochs=1)
    with pytest.warns(WatchWarning):
        result = train(config, tmp_path, watch=True)
    assert result.outcome == "diverged"
    last = pd.read_parquet(tmp_path / "steps.parquet").iloc[-1]
    (finding,) = json.loads((tmp_path / "findings.json").read_text())
    assert (finding["step"], finding["where"] != [""]) == (last["step"], True)
