"""Probes along a run: their tables beside it, and a run that they do not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from normless.cli import main
from normless.probes import RideAlong
from normless.probes.measure import every
from normless_lab.train import TrainConfig, train
from normless_lab.train.run_files import load_weights

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="skipinit",
    batch_size=256,
    epochs=2,
    rate=0.1,
    device="cpu",
)


def tables(folder: Path, name: str) -> pd.DataFrame:
    """All epochs of one probe."""
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "probes" / name).iterdir())])


def without_seconds(value: Any) -> Any:
    """A nested value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if "seconds" not in key}
    return [without_seconds(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_a_measured_run_is_the_run_it_was(tmp_path: Path) -> None:
    plain = train(CONFIG, tmp_path / "plain")
    ride = RideAlong(("signal", "gradients"), every(4))
    measured = train(CONFIG, tmp_path / "measured", ride_along=ride)
    assert without_seconds(plain.to_dict()) == without_seconds(measured.to_dict())
    one, other = (load_weights(tmp_path / name / "checkpoint.pt") for name in ("plain", "measured"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    # 1437 images in batches of 256 are 5 steps; 1, 5, 9 of the 10 are measured.
    signal = tables(tmp_path / "measured", "signal")
    assert list(signal["step"].unique()) == [1, 5, 9]
    assert len(signal) == 3 * 3
    branch = signal.groupby("step")["branch_variance"].max()
    assert branch[1] == 0
    assert branch[9] > 0
    assert set(tables(tmp_path / "measured", "gradients")["step"]) == {1, 5, 9}
    assert not (tmp_path / "plain" / "probes").exists()


def test_what_cannot_be_measured_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    ride = RideAlong(("signal",), every(1))
    for config, sentence in (
        (replace(CONFIG, micro_batch_size=32), "Probes measure whole batches, but micro_batch_size=32"),
        (replace(CONFIG, compile=True), "leave compile out for a run that is measured"),
    ):
        with pytest.raises(ValueError, match=sentence):
            train(config, tmp_path / "run", ride_along=ride)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_line_measures_along_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--model", CONFIG.model, "--scheme", "skipinit", "--batch-size", "512", "--epochs", "1"]
    out = tmp_path / "run"
    assert main([*words, "--device", "cpu", "--out", str(out), "--probes", "logits", "--probe-every", "2"]) == 0
    assert set(tables(out, "logits")["step"]) == {1}
    assert main([*words, "--device", "cpu", "--out", str(out), "--restart"]) == 0
    assert not (out / "probes").exists()
    assert main([*words, "--out", str(tmp_path / "no"), "--probes", "log"]) != 0
    assert "There is no probe 'log'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
