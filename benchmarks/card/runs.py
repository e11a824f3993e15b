"""Runs on a GPU: simultaneous and one after another, and the seconds to a test accuracy."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from benchmarks.card.settings import CardBench
from normless.errors import DataNotFoundError
from normless_lab.bench._step import StepBench
from normless_lab.data import ImageData, load_data
from normless_lab.sweeps._card import SETTLED, Admission, Turns
from normless_lab.sweeps._processes import Ended, Order
from normless_lab.sweeps._runs import carry_out_run
from normless_lab.train import TrainConfig, train
from normless_lab.train._image_task import ImageTask
from normless_lab.train._result import Row
from normless_lab.train._run_listener import RunListener, RunStart
from normless_lab.train._turns import Turn

# Runs one after another, beside those at once.
ALONE = 2
BATCH_SIZE = 128
# The training to a test accuracy; without norms, multipliers and biases have a tenth of the rate.
RECIPE: dict[str, Any] = {"batch_size": 256, "rate": 0.2, "weight_decay": 5e-4, "label_smoothing": 0.1}
WARMUP_EPOCHS = 3
SCALAR_RATE_SCALE = 0.1


class Counter(Admission):
    """Counts the steps of runs while all of them are running; `limit` as in `Admission`."""

    def __init__(self, limit: int, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(limit, lambda: (0.0, 1.0), clock)
        self._steps: dict[Hashable, int] = {}
        self._times: list[float] = []
        self._is_over = False

    def count(self, run: Hashable) -> None:
        """Count a step of a run."""
        super().count(run)
        self._steps[run] = self._steps.get(run, 0) + 1
        if len(self._steps) == self.limit and min(self._steps.values()) >= SETTLED and not self._is_over:
            self._times.append(self._clock())

    def end(self, run: Hashable) -> None:
        """Note the end of a run."""
        super().end(run)
        self._is_over |= bool(self._times)
        self._steps.pop(run, None)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of all runs; None if the runs were too short."""
        if len(self._times) < 2:
            return None
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])


class Stopwatch(RunListener):
    """Measures the seconds from the start of the first epoch to the end of each, with evaluation and saving."""

    def __init__(self) -> None:
        self._start = 0.0
        self.seconds: list[float] = []

    def on_start(self, start: RunStart) -> None:
        """The first epoch begins."""
        self._start = perf_counter()

    def on_epoch(self, row: Row) -> None:
        """An epoch is evaluated and saved."""
        self.seconds.append(perf_counter() - self._start)


def photographs_or_noise(*, root: Path) -> ImageData:
    """Return CIFAR-10 if it is in the folder, else as many images of noise."""
    try:
        return load_data("cifar10", root=root, download=False)
    except DataNotFoundError:
        return load_data("gaussian(train=50000, test=10000)")


def measure_together(bench: CardBench) -> Iterator[list[dict[str, Any]]]:
    """Execute runs of an epoch one after another, then simultaneously, of each network; yield two rows for each.

    Rows: seconds of all runs from start to result, runs per minute, the images per second of all runs while all are
    running (None if they are too short), and both relative to runs one after another.
    """
    for steps, model, together in zip(bench.step_benches(1), bench.models, bench.runs_together, strict=True):
        config = TrainConfig(
            model=model,
            scheme=bench.scheme,
            data=bench.run_data,
            data_root=bench.data_root,
            epochs=1,
            batch_size=BATCH_SIZE,
            precision="bf16-mixed",
            device=_kind(bench),
        )
        provenance = ImageTask(config).data.provenance
        _warm_up(config, bench)
        rows: list[dict[str, Any]] = []
        for count, at_once in ((ALONE, 1), (together, together)):
            configs = [replace(config, seed=seed) for seed in range(count)]
            seconds, speed, graph = _carry_out(configs, at_once, bench)
            row = {
                "network": steps.network,
                "scheme": bench.scheme,
                "runs": count,
                "at_once": at_once,
                "seconds": seconds,
                "runs_per_minute": 60 * count / seconds,
                "images_per_second": None if speed is None else speed * config.batch_size,
                "graph": graph,
                "data": provenance,
            }
            rows.append(row)
        for row in rows:
            for name, ratio in (("runs_per_minute", "ratio"), ("images_per_second", "images_ratio")):
                row[ratio] = row[name] / rows[0][name] if row[name] and rows[0][name] else None
        yield rows


def _warm_up(config: TrainConfig, bench: CardBench) -> None:
    """Execute the first steps of a run, so that what torch loads once per process is not timed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Turn(carry_out_run, config.KIND, config.to_dict(), folder)
        for _ in range(SETTLED):
            run.go_on()
        run.close()


def _carry_out(
    configs: Sequence[TrainConfig], at_once: int, bench: CardBench
) -> tuple[float, float | None, str | None]:
    """Execute runs as a process of a sweep does; raise a RuntimeError if a run fails.

    Return the seconds of all runs, their steps per second, and whether steps were captured as a CUDA graph.
    """
    ended: list[Ended] = []
    counter = Counter(at_once)
    turns = Turns(counter, ended.append)
    with tempfile.TemporaryDirectory() as folder:
        waiting = deque(
            Order(number, carry_out_run, (config.KIND, config.to_dict(), str(Path(folder) / str(number))))
            for number, config in enumerate(configs)
        )
        start = perf_counter()
        while waiting or turns.orders or not turns.is_idle:
            if waiting and turns.has_room:
                turns.take(waiting.popleft())
            turns.turn()
        seconds = perf_counter() - start
    for outcome in ended:
        error = outcome.error or outcome.result.error
        if error is not None:
            raise RuntimeError(f"A run of the benchmark failed with {error}.")
    graphs = {outcome.result.result["graph"] for outcome in ended} - {None}
    return seconds, counter.steps_per_second, ", ".join(sorted(graphs)) or None


def accuracy_configs(bench: CardBench) -> list[TrainConfig]:
    """Return the configurations of the trainings to a test accuracy."""
    return [
        TrainConfig(
            model=bench.models[-1],
            scheme=scheme,
            data=bench.data,
            data_root=bench.data_root,
            epochs=bench.epochs,
            schedule="cosine",
            precision="bf16-mixed",
            device=_kind(bench),
            scalar_rate_scale=1.0 if scheme == "batch_norm" else SCALAR_RATE_SCALE,
            warmup_epochs=min(WARMUP_EPOCHS, bench.epochs - 1),
            **RECIPE,
        )
        for scheme in bench.trained
    ]


def measure_accuracy(bench: CardBench) -> Iterator[list[dict[str, Any]]]:
    """Train by each scheme; yield a row with the seconds and epochs until the test accuracy is reached, and the best.

    Seconds count from the start of the first epoch, with evaluation and saving after each.
    """
    for config in accuracy_configs(bench):
        watch = Stopwatch()
        with tempfile.TemporaryDirectory() as folder:
            result = train(config, folder, listeners=[watch])
        accuracies = [row.test_accuracy for row in result.epochs]
        best = max(accuracies, default=0.0)
        reached = next((at for at, accuracy in enumerate(accuracies) if accuracy >= bench.target), None)
        row = {
            "network": StepBench(bench.architectures[-1][0], width=bench.architectures[-1][1]).network,
            "scheme": config.scheme,
            "target": bench.target,
            "seconds": None if reached is None else watch.seconds[reached],
            "epoch": None if reached is None else reached + 1,
            "result": "miss" if reached is None else "pass",
            "best_accuracy": best,
            "best_epoch": accuracies.index(best) + 1 if accuracies else None,
            "epochs": len(accuracies),
            "seconds_of_all": watch.seconds[-1] if watch.seconds else None,
            "outcome": result.outcome,
            "graph": result.graph,
            "data": result.data,
        }
        yield [row]


def _kind(bench: CardBench) -> Literal["cpu", "cuda"]:
    """Return the kind of device of a run."""
    return "cuda" if torch.device(bench.device).type == "cuda" else "cpu"
