"""A run in a logger: what a logger gets, what a resumed run adds, and loggers that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from run_helpers import Interrupt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from normless.errors import NormlessError
from normless_lab.train import TrainConfig, train

STEPS = 3


@pytest.fixture
def config() -> TrainConfig:
    model, data = "normless:dense(depth=2, width=16)", "digits(train=96, test=32)"
    return TrainConfig(model=model, scheme="none", data=data, batch_size=32, epochs=2, rate=0.01, device="cpu")


class Recorder:
    """A logger that keeps what it gets; its first calls may fail."""

    version: Any = "one"

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.metrics: list[tuple[int | None, dict[str, float]]] = []
        self.calls: list[tuple[Any, ...]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("no connection")
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.calls.append(("hyperparams", params))

    def finalize(self, status: str) -> None:
        self.calls.append(("finalize", status))

    def losses(self) -> dict[int | None, float]:
        found = [(step, metrics["step/loss"]) for step, metrics in self.metrics if "step/loss" in metrics]
        assert len(dict(found)) == len(found), "a step is logged twice"
        return dict(found)


class Closed(Recorder):
    def log_hyperparams(self, params: dict[str, Any]) -> None:
        raise RuntimeError("not logged in.\nSee the manual.")


def curve(folder: Path) -> dict[int, float]:
    steps = pd.read_parquet(folder / "steps.parquet")
    return dict(zip(steps["step"], steps["loss"], strict=True))


def interrupted(config: TrainConfig, folder: Path, at: int, **how: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, listeners=[Interrupt(at)], **how)


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


def test_a_resumed_run_shows_every_step_once_in_tensorboard(config: TrainConfig, tmp_path: Path) -> None:
    """TensorBoard is the logger of a run that names none."""
    interrupted(config, tmp_path / "run", STEPS + 1)
    logger = Recorder()
    result = train(config, tmp_path / "run", logger=[logger, "tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 2 * STEPS + 1))
    shown = events.Scalars("epoch/test_accuracy")
    assert [event.step for event in shown] == [STEPS, 2 * STEPS]
    assert [event.value for event in shown] == pytest.approx([row.test_accuracy for row in result.epochs], rel=1e-6)
    # A logger that is new gets what was before.
    assert logger.losses() == curve(tmp_path / "run")


def test_a_logger_that_fails_does_not_end_the_run(config: TrainConfig, tmp_path: Path) -> None:
    logger = Recorder(failures=2)
    with pytest.warns(UserWarning, match="The logger Recorder failed, and the run goes on: OSError: no") as said:
        train(config, tmp_path / "run", logger=logger)
    assert len(said) == 1
    assert logger.losses() == curve(tmp_path / "run")


def test_a_resumed_run_shows_every_step_once_in_csv(config: TrainConfig, tmp_path: Path) -> None:
    interrupted(config, tmp_path / "run", STEPS + 1, logger="csv")
    train(config, tmp_path / "run", logger="csv")
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv")
    losses = rows[rows["name"] == "step/loss"]
    assert dict(zip(losses["step"], losses["value"], strict=True)) == curve(tmp_path / "run")
    assert losses["step"].is_unique
    assert {"epoch/test_accuracy", "result/test_loss"} <= set(rows["name"])


class Named(Recorder):
    """A logger of a person's own, as a class of Lightning: it is given the arguments that it names."""

    made: ClassVar[list[Named]] = []

    def __init__(self, project: str, name: str | None = None, version: str | None = None) -> None:
        super().__init__()
        self.project, self.name, self.version = project, name, version or "first"
        self.made.append(self)


def test_a_class_is_a_logger_by_its_module_and_name(config: TrainConfig, tmp_path: Path) -> None:
    Named.made.clear()
    text = f"{Named.__module__}:Named(project='depth')"
    interrupted(config, tmp_path / "run", STEPS + 1, logger=text)
    Named.made[0].version = "elsewhere"
    train(config, tmp_path / "run", logger=text)
    assert [(one.project, one.name, one.version) for one in Named.made] == [
        ("depth", "run", "elsewhere"),
        ("depth", "run", "first"),
    ]
    assert Named.made[0].losses() | Named.made[1].losses() == curve(tmp_path / "run")


@pytest.mark.parametrize(
    ("logger", "error", "sentence"),
    [
        (Closed(), NormlessError, r"The logger Closed cannot begin: not logged in; leave it out for now\."),
        ("collections:Counter", NormlessError, "methods log_metrics, log_hyperparams, finalize, .* got an object of"),
        ("no_such_package:Logger", ValueError, "There is no module no_such_package with a logger 'Logger'"),
    ],
)
def test_a_logger_that_cannot_begin_is_told(
    config: TrainConfig, tmp_path: Path, logger: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        train(config, tmp_path / "run", logger=logger)
