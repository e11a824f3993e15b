"""Runs that take no time, in a folder of their own as real ones, and executors that need no processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from normless_lab.sweeps import Kind, RateGrid, Sweep, axis_of
from normless_lab.sweeps._processes import WorkerDiedError
from normless_lab.train._result import EpochRow, Report
from normless_lab.train._settings import Settings

# What a user's own code may raise that is no Exception.
ENDS: dict[str, type[BaseException]] = {"exits": SystemExit, "interrupts": KeyboardInterrupt}


@dataclass(frozen=True)
class TinyConfig(Settings):
    """A run whose test accuracy is known: the closer the rate is to `good`, the better.

    Its epochs take `pause` seconds each. `dies` is its fate once, after its first epoch; `dies again` always,
    and so `raises once` and `raises`; `exits` and `interrupts` are in `ENDS`.
    """

    KIND: ClassVar[str] = "lab_helpers:TINY"

    scheme: str = "none"
    good: float = 0.25
    fate: str = "well"
    pause: float = 0.0
    data_root: str | None = None
    epochs: int = 2
    rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.scheme:
            raise ValueError("Expected a scheme, got none.")


@dataclass(frozen=True)
class TinyResult(Report):
    outcome: Any
    test_accuracy: float
    test_loss: float
    seconds_per_epoch: float
    resumed_after: int
    epochs: tuple[EpochRow, ...]


def tiny(config: TinyConfig, directory: Path) -> TinyResult:
    """Execute a run, or go on with it."""
    record = directory / "epochs.txt"
    done = len(record.read_text().splitlines()) if record.exists() else 0
    for epoch in range(done + 1, config.epochs + 1):
        if config.fate == "raises" or (config.fate == "raises once" and not (directory / "raised").exists()):
            (directory / "raised").touch()
            raise ArithmeticError(f"no such number as {config.seed}")
        if config.fate in ENDS:
            raise ENDS[config.fate](config.seed)
        threading.Event().wait(config.pause)
        with record.open("a") as file:
            file.write(f"{epoch} {os.getpid()}\n")
        if config.fate == "dies again" or (config.fate == "dies" and epoch == 1 and not done):
            os.kill(os.getpid(), signal.SIGKILL)
    return tiny_result(config, resumed_after=done)


def where(pause: float = 0.0) -> tuple[int, int]:
    """The process and the threads of a task."""
    import torch

    threading.Event().wait(pause)
    return os.getpid(), torch.get_num_threads()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ArithmeticError("no such number")


def stay(record: str) -> None:
    """Write the process to a file, and do not end."""
    Path(record).write_text(str(os.getpid()))
    threading.Event().wait(600)


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether a condition holds within some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


def tiny_result(config: TinyConfig, *, resumed_after: int = 0) -> TinyResult:
    distance = abs(config.rate - config.good) / config.good
    accuracy = 1 / (1 + distance) - 1e-3 * config.seed
    diverged = config.fate == "diverges" and config.rate > config.good
    rows = tuple(
        EpochRow(epoch, config.rate, distance / epoch, accuracy, 0.01, distance, distance, accuracy, None)
        for epoch in range(1, 1 if diverged else config.epochs + 1)
    )
    loss = float("nan") if diverged else distance
    return TinyResult("diverged" if diverged else "trained", accuracy, loss, time.time(), resumed_after, rows)


TINY = Kind("lab_helpers:TinyConfig", "lab_helpers:tiny", "lab_helpers:TinyResult")


def tiny_sweep(**changes: Any) -> Sweep:
    """Two schemes at three rates; the best rate lies within them unless `good` is changed."""
    usual: dict[str, Any] = {
        "name": "tiny",
        "base": {},
        "axes": {"scheme": axis_of("scheme", ["none", "fixup"])},
        "rates": RateGrid.powers(-3, -1),
        "replicates": 2,
        "best": 2,
        "run": TinyConfig.KIND,
    }
    return Sweep(**{**usual, **changes})


class Here:
    """Executes in this process when the result is asked for at the latest; takes down what it did."""

    def __init__(self, window: int = 4, deaths: dict[int, int] | None = None) -> None:
        self.window = window
        self.deaths = deaths or {}
        self.carried_out: list[tuple[Any, ...]] = []
        self.groups: list[Hashable] = []
        self.entered = 0
        self.left = 0

    def __enter__(self) -> Self:
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.left += 1

    def submit(self, function: Callable[..., Any], *args: Any, group: Hashable = None) -> Future[Any]:
        future: Future[Any] = Future()
        seed = args[1]["seed"] if self.deaths else -1
        if self.deaths.get(seed, 0) > 0:
            self.deaths[seed] -= 1
            future.set_exception(WorkerDiedError("its process died with exit code -9."))
            return future
        self.carried_out.append(args)
        self.groups.append(group)
        try:
            future.set_result(function(*args))
        except WorkerDiedError as error:
            future.set_exception(error)
        return future
