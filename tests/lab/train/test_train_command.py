"""`normless train`: flags, YAML, what it prints and where it leaves the run."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import yaml
from command_outputs import check_output
from jsonargparse import ArgumentParser
from rich.console import Console

from normless.cli import main
from normless_lab.train import TRAIN, EpochRow, ProgressBar, RunResult, TrainConfig, train
from normless_lab.train.directory import RunDirectory
from normless_lab.train.run_listener import RunStart

FLAGS = ["--model", "normless:wide_resnet(depth=10, width=1)", "--batch-size", "512", "--epochs", "1"]


def parser() -> ArgumentParser:
    arguments = ArgumentParser(exit_on_error=False)
    TRAIN.add_arguments(arguments)
    return arguments


def test_flags_are_the_fields_and_follow_a_file(tmp_path: Path) -> None:
    words = ["--rate", "5e-1", "--flip", "false", "--micro-batch-size", "32", "--schedule", "cosine", "--out", "x"]
    namespace = parser().parse_args(words)
    config = TrainConfig(rate=0.5, flip=False, micro_batch_size=32, schedule="cosine")
    assert TrainConfig.from_dict({name: namespace[name] for name in config.to_dict()}) == config
    assert namespace.out == Path("x")
    with pytest.raises(Exception, match="precision"):
        parser().parse_args(["--precision", "sideways"])
    file = tmp_path / "config.yaml"
    config = TrainConfig(rate=0.25, scheme="skipinit(alpha=1)", dropout=0.5)
    RunDirectory(tmp_path, TrainConfig, RunResult).begin(config)
    namespace = parser().parse_args(["--config", str(file), "--dropout", "null"])
    assert (namespace.rate, namespace.scheme, namespace.dropout) == (0.25, "skipinit(alpha=1)", None)


def test_it_prints_one_json_object_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*FLAGS, "--out", str(tmp_path / "run"), "--json"]
    assert TRAIN.run(parser().parse_args(words)) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("train", printed)
    assert printed.pop("directory") == str(tmp_path / "run")
    result = RunResult.from_dict(printed)
    assert len(result.epochs) == 1
    config = TrainConfig.from_dict(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert train(config, tmp_path / "run") == result  # it is the stored one
    TRAIN.run(parser().parse_args([*words, "--restart"]))
    again = json.loads(capsys.readouterr().out)
    assert again["test_loss"] == result.test_loss
    assert again["seconds_per_epoch"] != result.seconds_per_epoch


def row(epoch: int, accuracy: float) -> EpochRow:
    return EpochRow(epoch, 0.1, 1.0, 0.5, 2.0, 1.1, 1.2, accuracy, None)


def test_the_bar_shows_where_the_run_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    text = io.StringIO()
    with ProgressBar(Console(file=text, force_terminal=True, width=120)) as bar:
        assert "preparing the run …" in text.getvalue()
        text.truncate(text.seek(0))
        bar.on_start(RunStart(TrainConfig(epochs=4), 10, (row(1, 0.25),)))
        task = bar._progress.tasks[0]
        assert (task.completed, task.total) == (10, 40)
        bar.on_step(20, 1.23456)
        bar.on_epoch(row(2, 0.5))
        assert task.completed == 20
    shown = text.getvalue()
    # The line before the first step is erased.
    before, erased, after = shown.rpartition("\x1b[1A\x1b[2K")
    assert erased
    assert ("epoch" in before, "preparing" in after) == (False, False)
    for part in ("epoch 3/4", "loss 1.23", "test accuracy 50.00%"):
        assert part in shown


def test_off_a_terminal_each_epoch_is_a_line() -> None:
    text = io.StringIO()
    with ProgressBar(Console(file=text, width=20)) as bar:
        bar.on_start(RunStart(TrainConfig(epochs=4), 10, (row(1, 0.25),)))
        bar.on_step(20, 1.23456)
        assert text.getvalue() == "4 epochs of 10 steps; 1 done\n"
        for epoch, accuracy in ((2, 0.5), (3, 0.75)):
            bar.on_epoch(row(epoch, accuracy))
            assert text.getvalue().count("\n") == epoch
    lines = [line.split("  ") for line in text.getvalue().splitlines()[1:] if line]
    assert lines == [
        ["epoch 2/4", "loss 1", "test accuracy 50.00%", "2.0 s"],
        ["epoch 3/4", "loss 1", "test accuracy 75.00%", "2.0 s"],
    ]


@pytest.mark.parametrize("words", [["train", "--epochs", "1", "--model"], ["diagnose"]])
def test_a_network_of_other_channels_than_the_data_is_told_with_a_way_out(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from normless.models import resnet_cifar\ndef net(): return resnet_cifar(8, in_channels=3)\n"
    )
    assert main([*words, "mine.py:net", "--data", "digits(side=16)"]) == 2
    said = capsys.readouterr().err
    for part in ("digits(side=16): stem, a Conv2d", "takes 3 channels", "digits(side=16, channels=3)"):
        assert part in said
    size = "8" if words == ["diagnose"] else "500"
    assert main([*words, "mine.py:net", "--data", "digits(side=16, channels=3)", "--batch-size", size]) == 0


def test_without_settings_it_shows_them_and_asks_for_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 2
    shown = capsys.readouterr()
    assert re.search(r"about \d+ (minutes|seconds)", shown.err)
    assert "--model" in shown.err
    for name, value in (("epochs", "200"), ("model", TrainConfig.model), ("data", "digits")):
        assert re.search(rf"^{name} +{re.escape(value)} *$", shown.out, re.M)
    assert not list(tmp_path.iterdir())


def test_the_default_model_is_trained_if_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained: list[TrainConfig] = []

    def note(config: TrainConfig, *_: object, **__: object) -> None:
        trained.append(config)
        raise ValueError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normless_lab.train.training_run.train", note)
    for words in (["--model", TrainConfig.model], ["--epochs", "1"], ["--out", "run"]):
        assert main(["train", *words]) == 2
    assert [config.epochs for config in trained] == [200, 1, 200]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"model": TrainConfig.model}))
    assert main(["train", "--config", "run.yaml"]) == 2
    assert trained[3:] == [TrainConfig()]
