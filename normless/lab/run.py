"""One run of the demo, as a worker process executes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from normless.lab.laws import law_skip_variance
from normless.lab.settings import DemoSettings


@dataclass(frozen=True)
class DemoRun:
    """One depth and one scheme; the deepest networks also have their signal measured at initialization."""

    settings: DemoSettings
    depth: int
    scheme: str
    measures_signal: bool

    def __str__(self) -> str:
        return f"depth {self.depth}, {self.scheme}"

    @property
    def model(self) -> str:
        """The network as `normless.models.spec` reads it."""
        return f"normless:wide_resnet(depth={self.depth}, width={self.settings.width})"


@dataclass(frozen=True)
class RunState:
    """Where a run stands: ``waiting``, ``running`` or its outcome; epochs done, last test accuracy (0..1)."""

    state: str
    epoch: int = 0
    test_accuracy: float | None = None


@dataclass(frozen=True)
class RunRecord:
    """What became of a run and after how many finished epochs; ``signal`` is None where it was not measured."""

    run: DemoRun
    outcome: str
    epochs: int
    test_accuracy: float
    seconds_per_epoch: float
    signal: pd.DataFrame | None


def train_run(run: DemoRun, emit: Callable[[RunState], None]) -> RunRecord:
    """Train one network, telling where it stands after every epoch."""
    from normless.training import EpochRow, TrainConfig, train

    settings = run.settings
    config = TrainConfig(
        model=run.model,
        scheme=run.scheme,
        data=settings.data,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        rate=settings.rate,
        # A pixel is an eighth of a digit: shifted digits need more epochs than a demo has.
        crop=0,
        device="cpu",
        seed=settings.seed,
    )
    emit(RunState("running"))

    def on_epoch(row: EpochRow) -> None:
        emit(RunState("running", epoch=row.epoch, test_accuracy=row.test_accuracy))

    directory = settings.out / "runs" / f"depth-{run.depth}-{run.scheme}"
    result = train(config, directory, resume=False, on_epoch=on_epoch)
    signal = measure_signal(run) if run.measures_signal else None
    return RunRecord(run, result.outcome, len(result.epochs), result.test_accuracy, result.seconds_per_epoch, signal)


def measure_signal(run: DemoRun, examples: int = 128) -> pd.DataFrame:
    """The signal at initialization of the run's network on the first test images: see `signal_table`.

    Returns:
        The rows of `signal_table`, the columns ``depth`` and ``scheme`` before them, ``law_skip_variance`` behind.
    """
    import torch

    from normless import convert
    from normless.data import load_data
    from normless.models.spec import build_model
    from normless.probes.forward.signal import signal_table

    data = load_data(run.settings.data)
    inputs = next(iter(data.test_batches(examples, device=torch.device("cpu")))).inputs
    torch.manual_seed(run.settings.seed)
    channels, height, width = data.image_shape
    model = build_model(run.model, classes=data.classes, image_shape=(channels, height, width))
    table: pd.DataFrame = signal_table(convert(model, run.scheme, inputs), inputs)
    table.insert(0, "depth", run.depth)
    table.insert(1, "scheme", run.scheme)
    table["law_skip_variance"] = law_skip_variance(run.scheme, table)
    return table
