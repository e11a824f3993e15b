"""`normless train`: flags, YAML, what it prints and where it leaves the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_outputs import check_output

from normless.cli import main
from normless_lab.train import RunResult, TrainConfig, train

FLAGS = ["--model", "normless:wide_resnet(depth=10, width=1)", "--batch-size", "512", "--epochs", "1"]


def test_it_prints_one_json_object_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *FLAGS, "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("train", printed)
    assert printed.pop("directory") == str(tmp_path / "run")
    result = RunResult.from_dict(printed)
    assert len(result.epochs) == 1
    config = TrainConfig.from_dict(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert train(config, tmp_path / "run") == result  # it is the stored one
    assert main([*words, "--restart"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["test_loss"] == result.test_loss
    assert again["seconds_per_epoch"] != result.seconds_per_epoch


def test_a_network_of_other_channels_than_the_data_is_told_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from normless.models import resnet_cifar\ndef net(): return resnet_cifar(8, in_channels=3)\n"
    )
    assert main(["diagnose", "mine.py:net", "--data", "digits(side=16)"]) == 2
    said = capsys.readouterr().err
    for part in ("digits(side=16): stem, a Conv2d", "takes 3 channels", "digits(side=16, channels=3)"):
        assert part in said
    assert main(["diagnose", "mine.py:net", "--data", "digits(side=16, channels=3)", "--batch-size", "8"]) == 0
