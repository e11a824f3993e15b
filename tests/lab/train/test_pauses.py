"""Runs that are saved within an epoch, stopped by a time limit or SIGTERM, resumed and lengthened."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lab_helpers import within
from run_helpers import CONFIG as SHORT, Interrupt, assert_same_run, without_seconds

from normless.cli import main
from normless_lab.train import TrainConfig, train
from normless_lab.train._directory import RunDirectoryError

CONFIG = TrainConfig(model=SHORT.model, data="digits(train=320, test=100)", batch_size=64, epochs=2, device="cpu")
STEPS = 5


def test_the_command_says_how_it_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--model", CONFIG.model, "--data", CONFIG.data, "--epochs", "1", "--device", "cpu"]
    words += ["--out", str(tmp_path / "run")]
    assert main([*words, "--time-limit", "0.001s"]) == 75
    said = capsys.readouterr().err
    assert "normless: The run reached its time limit after step 1 of 2 of epoch 1; it is saved" in said
    assert main([*words, "--time-limit", "soon"]) == 2
    assert "Expected a duration such as 90s, 10m or 1.5h, got 'soon'." in capsys.readouterr().err
    assert main([*words, "--time-limit", "1h", "--checkpoint-every", "1m"]) == 0


@pytest.mark.slow
def test_sigterm_ends_the_process_by_143(tmp_path: Path) -> None:
    words = ["train", "--model", CONFIG.model, "--epochs", "500", "--device", "cpu", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "normless", *words], stderr=subprocess.PIPE, text=True)
    assert within(60, (tmp_path / "checkpoint.pt").exists)
    process.terminate()
    _, told = process.communicate(timeout=30)
    assert process.returncode == 143, told
    assert "normless: The run was told to end (SIGTERM)" in told
    assert "Traceback" not in told


def test_a_run_at_a_constant_rate_can_be_lengthened(tmp_path: Path) -> None:
    short = replace(CONFIG, schedule="constant", epochs=2)
    longer = replace(short, epochs=3)
    whole = train(longer, tmp_path / "whole")
    train(short, tmp_path / "parts")
    result = train(longer, tmp_path / "parts")
    assert without_seconds(result) == without_seconds(whole)
    assert_same_run(tmp_path / "parts", tmp_path / "whole", 3, {"momentum_buffer"})
    assert train(longer, tmp_path / "parts") == result
    with pytest.raises(RunDirectoryError, match="epochs is 3 there and 2 here"):
        train(short, tmp_path / "parts")


def test_a_run_whose_schedule_depends_on_the_length_is_lengthened_when_told(tmp_path: Path) -> None:
    short, longer = train(CONFIG, tmp_path), replace(CONFIG, epochs=4)
    with pytest.raises(RunDirectoryError, match=r"of 2 epochs, .* other rates .* lengthen=True \(--lengthen\)"):
        train(longer, tmp_path)
    assert train(CONFIG, tmp_path) == short
    with pytest.raises(KeyboardInterrupt):
        train(longer, tmp_path, lengthen=True, listeners=[Interrupt(2 * STEPS + 2)])
    result = train(longer, tmp_path)
    assert [row.rate for row in result.epochs[:2]] == [row.rate for row in short.epochs]
    # The last of 20 steps, at 19/20 of the training.
    assert result.epochs[3].rate == CONFIG.rate * 2.0 ** -max(0, 20 * 19 // 20 - 9)
    assert len(result.epochs) == 4
