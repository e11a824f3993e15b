"""A laboratory that records requested runs and returns simulated results, so that artefacts finish."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

from normless_lab.sweeps import (
    Laboratory,
    RunRow,
    Sweep,
    SweepResult,
    WeightsError,
    kind_of,
    machine,
    sweep_result,
    versions,
)
from normless_lab.train import Settings
from normless_papers.artefact import Artefact, Context

# An artefact at paper budget may measure something itself besides its runs; that is not waited for.
SECONDS = 10


class RecordingLaboratory(Laboratory):
    """Carries out nothing.

    Attributes:
        configs: the recorded runs, by hash.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, workers=1)
        self.configs: dict[str, Settings] = {}

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """Record the runs of the grid, without extensions."""
        points = [(point.config.hash, point) for point in sweep.points()]
        self.configs |= {name: point.config for name, point in points}
        return sweep_result(sweep, points, {name: made_up(point.config) for name, point in points})

    def read(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """As `run`."""
        return self.run(sweep, metrics=metrics)

    def carry_out(self, configs: Sequence[Settings]) -> list[RunRow]:
        """Record the runs."""
        self.configs |= {config.hash: config for config in configs}
        return [made_up(config) for config in configs]

    def weights(self, configs: Sequence[Settings]) -> list[Path]:
        """Record the runs; there are no weights.

        Raises:
            WeightsError: always, where a run is asked for.
        """
        self.carry_out(configs)
        if configs:
            raise WeightsError("its runs have no weights here")
        return []


@dataclass(frozen=True)
class Recorded:
    """What an artefact asks for.

    Attributes:
        configs: its runs, by hash.
        ended: error with which the function ended, if any; simulated results may cause one.
    """

    configs: Mapping[str, Settings] = field(default_factory=dict)
    ended: str = ""


def recorded(artefact: Artefact) -> Recorded:
    """The runs that an artefact asks for at paper budget."""
    with tempfile.TemporaryDirectory() as folder, RecordingLaboratory(Path(folder)) as lab:
        ended = ""
        try:
            with _limited(SECONDS):
                artefact.function(Context("paper", lab, Path(folder)), **artefact.settings["paper"])
        except Exception as error:
            ended = str(error) if isinstance(error, _TooLongError) else f"{type(error).__name__}: {error}"
        return Recorded(dict(lab.configs), ended)


def made_up(config: Settings) -> RunRow:
    """The row of a run that was not executed: it trained, and its numbers are of the right kinds."""
    kind = kind_of(config.KIND)
    report = kind.result_class()
    epochs = [_made_up(report.ROW) | {"epoch": epoch} for epoch in (1, 2)]
    result = _made_up(report) | {"outcome": "trained", "config_hash": config.hash, "epochs": epochs}
    return RunRow(config.hash, config.KIND, config.to_dict(), "trained", None, result, 1.0, "", machine(), versions())


def _made_up(kind: Any) -> dict[str, Any]:
    """A value of the right type for every field."""
    values: dict[str, Any] = {"int": 1, "float": 0.5, "str": "", "bool": False}
    return {
        one.name: values.get(str(one.type).partition(" |")[0])
        for one in fields(kind)
        if one.default is MISSING and one.name != "epochs"
    }


class _TooLongError(Exception):
    """The time is over."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLongError(f"it measures something itself and exceeded the limit of {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
