"""A run in a logger: what a logger gets, what a resumed run adds, and the named loggers with files of their own."""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_helpers import Interrupt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from normless.cli import main
from normless.diagnosis import WatchWarning
from normless.errors import NormlessError
from normless.probes import RideAlong, every
from normless_lab.train import LOGGERS, TrainConfig, train

STEPS = 3
PERCEPTRON = """
from torch import nn
def net(classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    (tmp_path / "net.py").write_text(PERCEPTRON)
    data = "digits(train=96, test=32)"
    model = f"{tmp_path}/net.py:net"
    return TrainConfig(model=model, scheme="none", data=data, batch_size=32, epochs=2, rate=0.01, device="cpu")


class Recorder:
    """A logger that keeps what it gets."""

    version: Any = "one"

    def __init__(self) -> None:
        self.metrics: list[tuple[int | None, dict[str, float]]] = []
        self.calls: list[tuple[Any, ...]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.calls.append(("hyperparams", params))

    def finalize(self, status: str) -> None:
        self.calls.append(("finalize", status))

    def losses(self) -> dict[int | None, float]:
        found = [(step, metrics["step/loss"]) for step, metrics in self.metrics if "step/loss" in metrics]
        assert len(dict(found)) == len(found), "a step is logged twice"
        return dict(found)


class Pictures(Recorder):
    """A logger that also takes figures and tables."""

    def log_image(self, key: str, images: Sequence[Path], step: int | None = None) -> None:
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)
        self.calls.append(("image", key, step))

    def log_table(self, key: str, dataframe: pd.DataFrame, step: int | None = None) -> None:
        self.calls.append(("table", key, dataframe))


def curve(folder: Path) -> dict[int, float]:
    steps = pd.read_parquet(folder / "steps.parquet")
    return dict(zip(steps["step"], steps["loss"], strict=True))


def test_a_logger_gets_configuration_losses_rows_and_result(config: TrainConfig, tmp_path: Path) -> None:
    logger = Recorder()
    result = train(config, tmp_path / "run", logger=logger)
    assert logger.calls == [("hyperparams", config.to_dict()), ("finalize", "success")]
    assert logger.losses() == curve(tmp_path / "run")
    rows = {step: metrics for step, metrics in logger.metrics if "epoch/test_accuracy" in metrics}
    assert list(rows) == [STEPS, 2 * STEPS]
    assert rows[STEPS]["epoch/test_accuracy"] == result.epochs[0].test_accuracy
    step, metrics = logger.metrics[-1]
    assert (step, metrics["result/test_loss"]) == (2 * STEPS, result.test_loss)
    assert not (tmp_path / "run" / "tensorboard").exists()
    steps = [step or 0 for step, _ in logger.metrics]
    assert steps == sorted(steps)


@pytest.mark.parametrize("at", [2, 4])
def test_a_resumed_run_logs_each_step_once(config: TrainConfig, tmp_path: Path, at: int) -> None:
    first, second = Recorder(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", logger=first, listeners=[Interrupt(at)])
    assert first.calls[-1] == ("finalize", "aborted")
    train(config, tmp_path / "run", logger=second)
    assert ("hyperparams", config.to_dict()) not in second.calls
    assert not first.losses().keys() & second.losses().keys()
    assert first.losses() | second.losses() == curve(tmp_path / "run")


def test_a_logger_that_is_new_gets_what_was_before(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listeners=[Interrupt(STEPS + 1)])
    logger = Recorder()
    train(config, tmp_path / "run", logger=[logger, "tensorboard"])
    assert logger.losses() == curve(tmp_path / "run")
    assert [step for step, metrics in logger.metrics if "epoch/rate" in metrics] == [STEPS, 2 * STEPS]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 2 * STEPS + 1))


def test_a_checkpoint_within_an_epoch_leaves_no_hole(config: TrainConfig, tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", logger=first, listeners=[Interrupt(3)], checkpoint_every="2")
    # As if it was killed before it had sent anything.
    (tmp_path / "run" / "loggers.json").unlink()
    train(config, tmp_path / "run", logger=second)
    assert second.losses() == curve(tmp_path / "run")


def test_figures_of_what_was_measured(config: TrainConfig, tmp_path: Path) -> None:
    logger = Pictures()
    train(config, tmp_path / "run", logger=logger, watch=True, ride_along=RideAlong(("gradients",), every(1)))
    images = {call[1]: call[2] for call in logger.calls if call[0] == "image"}
    assert images.keys() >= {"figures/loss", "figures/gradient_norm", "figures/gradients"}
    assert {*images.values()} == {2 * STEPS}


def test_of_several_passes_of_an_epoch_the_last_is_drawn(config: TrainConfig, tmp_path: Path) -> None:
    logger = Pictures()
    network = replace(config, model="normless:resnet_cifar(depth=8)", scheme="batch_norm", epochs=1)
    train(network, tmp_path / "run", logger=logger, ride_along=RideAlong(("signal",), every(1)))
    assert [call[1] for call in logger.calls if call[0] == "image"] == ["figures/signal"]


def test_findings_of_a_watch(config: TrainConfig, tmp_path: Path) -> None:
    logger = Pictures()
    with pytest.warns(WatchWarning):
        train(replace(config, rate=1e9), tmp_path / "run", logger=logger, watch=True)
    (table,) = (call[2] for call in logger.calls if call[0] == "table")
    stored = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert table["title"].tolist() == [finding["title"] for finding in stored]
    assert logger.losses().keys() == curve(tmp_path / "run").keys()


class Broken(Recorder):
    """Fails until it is repaired."""

    failures = 2

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no connection")
        super().log_metrics(metrics, step)


def test_a_logger_that_fails_does_not_end_the_run(config: TrainConfig, tmp_path: Path) -> None:
    logger = Broken()
    with pytest.warns(UserWarning, match="The logger Broken failed, and the run goes on: OSError: no") as said:
        train(config, tmp_path / "run", logger=logger)
    assert len(said) == 1
    assert logger.losses() == curve(tmp_path / "run")


def test_a_logger_that_cannot_begin_is_an_error(config: TrainConfig, tmp_path: Path) -> None:
    class Closed(Recorder):
        def log_hyperparams(self, params: dict[str, Any]) -> None:
            raise RuntimeError("not logged in.\nSee the manual.")

    with pytest.raises(NormlessError, match=r"The logger Closed cannot begin: not logged in; leave it out for now\."):
        train(config, tmp_path / "run", logger=Closed())


MISTAKES: list[tuple[Any, str]] = [
    ("tensorbord", r"There is no logger 'tensorbord'\. Did you mean tensorboard\?"),
    ("tensorboard(colour=1)", "The logger tensorboard takes no arguments; it does not take colour"),
    (object(), r"or the name of one, tensorboard, wandb, .*; got an object of object without log_metrics"),
    (Recorder, "got the class Recorder"),
    (["tensorboard", 3], "got an object of int"),
]


@pytest.mark.parametrize(("logger", "sentence"), MISTAKES)
def test_mistakes_leave_no_files(config: TrainConfig, tmp_path: Path, logger: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train(config, tmp_path / "run", logger=logger)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_named(
    config: TrainConfig, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=f"The logger {name} needs {name}, .*: pip install {name}"):
        train(config, tmp_path / "run", logger=name)
    assert not (tmp_path / "run").exists()


def test_a_logger_of_a_file_from_the_command(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from lightning_fabric.loggers import CSVLogger\n"
        "def csv(directory, name, version, folder='csv'):\n"
        "    return CSVLogger(directory, folder, version or '')\n"
    )
    words = [f"--{name}={getattr(config, name)}" for name in ("model", "scheme", "data", "epochs", "device")]
    logger = f"{tmp_path}/mine.py:csv(folder='numbers')"
    assert main(["train", *words, "--out", str(tmp_path / "run"), "--logger", logger, "tensorboard", "--json"]) == 0
    table = pd.read_csv(tmp_path / "run" / "numbers" / "metrics.csv")
    assert table["epoch/test_accuracy"].dropna().tolist() == pytest.approx(
        [row["test_accuracy"] for row in json.loads(capsys.readouterr().out)["epochs"]]
    )
    assert (tmp_path / "run" / "tensorboard").is_dir()


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files of a logger, and no connections."""
    for name in ("DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY", "WANDB_SILENT"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path


def interrupted_and_resumed(config: TrainConfig, folder: Path, logger: str) -> dict[int, float]:
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, logger=logger, listeners=[Interrupt(STEPS + 1)])
    train(config, folder, logger=logger)
    return curve(folder)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_curves_in_sqlite(config: TrainConfig, offline: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{offline}/mlflow.db"
    losses = interrupted_and_resumed(config, offline / "run", f"mlflow(tracking_uri={uri!r})")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("normless").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer"] == "SGD"
    history = client.get_metric_history(run.info.run_id, "step/loss")
    assert {metric.step: metric.value for metric in history} == losses
    assert len(history) == 2 * STEPS


@pytest.mark.filterwarnings("ignore")
def test_wandb_has_the_curves_offline(config: TrainConfig, offline: Path) -> None:
    wandb = pytest.importorskip("wandb")
    losses = interrupted_and_resumed(config, offline / "run", f"wandb(mode='offline', dir={str(offline)!r})")
    wandb.teardown()  # It writes files behind.
    logged: dict[int, float] = {}
    for file in sorted((offline / "wandb").glob("offline-run-*/*.wandb")):
        logged |= _offline_losses(file)
    assert logged == pytest.approx(losses)


def _offline_losses(file: Path) -> dict[int, float]:
    """Read the losses by step in the file of an offline run."""
    found: dict[int, float] = {}
    for data in _records(file.read_bytes()):
        record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record()
        record.ParseFromString(data)
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "step/loss" in items:
            found[items["_step"]] = items["step/loss"]
    return found


def _records(content: bytes) -> Iterator[bytes]:
    """Read a log of LevelDB: after 7 bytes, blocks of 32 KiB with chunks of records; type 1 is whole, 4 the last."""
    place, record = 7, b""
    while place + 7 <= len(content):
        size, kind = struct.unpack_from("<HB", content, place + 4)
        if kind:
            record += content[place + 7 : place + 7 + size]
            place += 7 + size
        if kind in (1, 4):
            yield record
            record = b""
        if not kind or 32768 - place % 32768 < 7:
            place += -place % 32768


@pytest.mark.filterwarnings("ignore")
def test_trackio_has_the_curves_on_this_machine(config: TrainConfig, offline: Path) -> None:
    trackio = pytest.importorskip("trackio")
    losses = interrupted_and_resumed(config, offline / "run", "trackio(project='digits')")
    (run,) = trackio.Api().runs("digits")
    logged = [row for row in trackio.SQLiteStorage.get_logs("digits", run.name) if "step/loss" in row]
    assert {row["step"]: row["step/loss"] for row in logged} == pytest.approx(losses)
    assert len(logged) == 2 * STEPS


def test_names_are_those_of_the_documentation() -> None:
    assert list(LOGGERS) == ["tensorboard", "wandb", "mlflow", "trackio"]
