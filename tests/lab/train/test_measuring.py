"""Probes along a run: their tables beside it, and a run that they do not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from normless.cli import main
from normless.probes import RideAlong
from normless.probes.measure import every
from normless_lab.train import TrainConfig, train

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
