"""The kinds of runs that a sweep can consist of, and a finished run as a row of the laboratory's table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, cast

from normless.code_names import names_of_data
from normless.errors import NormlessError
from normless.registry import Registry
from normless_lab.train import Report, Settings

RunOutcome = Literal["trained", "chance", "diverged", "failed"]
OUTCOMES: tuple[RunOutcome, ...] = ("trained", "chance", "diverged", "failed")

# Columns of the table of runs that are of the same name in a result.
RESULT_COLUMNS = (
    *("test_accuracy", "test_accuracy_top5", "chance_accuracy", "test_loss"),
    *("seconds_per_epoch", "steps", "parameters", "diverged_step"),
)
# Columns of the last finished epoch.
EPOCH_COLUMNS = ("training_loss", "training_loss_with_l2")
# Columns that an optimum can be requested for, besides those of the kind of run.
METRICS = (*RESULT_COLUMNS, *EPOCH_COLUMNS)
ABOUT = ("epochs", "hash", "error")


_NO_METRICS: Mapping[str, str] = MappingProxyType({})


class UnknownKindError(NormlessError, ValueError):
    """The kind of run is unknown; the message lists the existing kinds."""


@dataclass(frozen=True)
class Kind:
    """A kind of run. Each attribute is the text `MODULE:NAME` of an object that is imported on first use.

    Attributes:
        settings: class of its configuration, a subclass of `Settings`.
        carry_out: function (configuration, directory) → result that starts or resumes the run in the directory.
        result: class of the result, a subclass of `Report`.
        metrics: columns that the table of runs has for this kind, each with the field of the result.
    """

    settings: str
    carry_out: str
    result: str
    metrics: Mapping[str, str] = field(default_factory=lambda: _NO_METRICS)

    @classmethod
    def of_training(cls, settings: str, result: str, metrics: Mapping[str, str] = _NO_METRICS) -> Kind:
        """Return the kind of the runs of the training loop."""
        return cls(settings, "normless_lab.train:train", result, metrics)

    def settings_class(self) -> type[Settings]:
        """The class of its configurations."""
        return cast(type[Settings], resolve_name(self.settings))

    def function(self) -> Callable[..., Report]:
        """The function that carries a run out."""
        return cast(Callable[..., Report], resolve_name(self.carry_out))

    def result_class(self) -> type[Report]:
        """The class of its results."""
        return cast(type[Report], resolve_name(self.result))


KINDS: Registry[Kind] = Registry("kind of run", "kinds", package="normless_lab", of=Kind)
"""The kinds of runs by name; other distributions add theirs by entry points."""
KINDS.register("train")(Kind.of_training("normless_lab.train:TrainConfig", "normless_lab.train:RunResult"))


def kind_of(name: str) -> Kind:
    """Return the kind of run of a name in `KINDS`, FILE.py:NAME or MODULE:NAME, or raise UnknownKindError."""
    try:
        return KINDS.find(name)
    except (ValueError, ModuleNotFoundError) as error:
        raise UnknownKindError(
            f"There is no kind of run {name!r}; there are {', '.join(KINDS)}, and one of your own is FILE.py:NAME or "
            f"MODULE:NAME of a normless_lab.sweeps.Kind. {error}"
        ) from error


@dataclass(frozen=True)
class RunRow:
    """One finished run.

    Attributes:
        hash: of the configuration; identifies the run.
        kind: name of the kind of run, see `kind_of`.
        config: the configuration as plain data.
        outcome: of the training; `failed` if the run raised or its process died repeatedly.
        error: type and message of the exception of a failed run, else None.
        result: the report as plain data, see `Report.to_dict`; None for a failed run.
        seconds: wall time; for a run that was interrupted, of its last part.
        finished_at: date and time in UTC, ISO 8601.
        machine: on which it ran.
        versions: by package, of the packages that results depend on.
    """

    hash: str
    kind: str
    config: Mapping[str, Any]
    outcome: RunOutcome
    error: str | None
    result: Mapping[str, Any] | None
    seconds: float
    finished_at: str
    machine: str
    versions: Mapping[str, str]

    def settings(self) -> Settings:
        """The configuration."""
        kind = self._kind().settings_class()
        with names_of_data(f"The row of run {self.hash[:8]}"):
            return kind.from_dict(self.config)

    def report(self) -> Report | None:
        """The result; None for a failed run."""
        return None if self.result is None else self._kind().result_class().from_dict(self.result)

    def columns(self) -> dict[str, Any]:
        """The row of the table of runs, without labels; numbers that the run does not have are NaN."""
        result = self.result or {}
        last = result["epochs"][-1] if result.get("epochs") else {}
        columns = {name: name for name in RESULT_COLUMNS}
        # Rows of others in the same database may be of a kind that nobody named here.
        with suppress(UnknownKindError):
            columns |= self._kind().metrics
        numbers = {column: number(result.get(name)) for column, name in columns.items()}
        numbers |= {name: number(last.get(name)) for name in EPOCH_COLUMNS}
        about = {"epochs": self.config.get("epochs"), "hash": self.hash, "error": self.error}
        return {"outcome": self.outcome} | numbers | about

    def _kind(self) -> Kind:
        """Return the kind of run, of which the name is data."""
        with names_of_data(f"The row of run {self.hash[:8]}"):
            return kind_of(self.kind)

    def epochs(self) -> list[dict[str, Any]]:
        """The rows of the table of epochs, without labels."""
        return [
            {
                "epoch_rate" if name == "rate" else name: value if name == "epoch" else number(value)
                for name, value in epoch.items()
            }
            for epoch in (self.result or {}).get("epochs", ())
        ]


def number(value: Any) -> float:
    """Convert a number in the JSON of a report, where `inf` and `nan` are texts and a missing number is null."""
    return math.nan if value is None else float(value)
