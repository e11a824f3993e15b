"""Probes along a run: their tables beside it, and a run that they do not change."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from normless.cli import main
from normless_lab.train import TrainConfig

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
