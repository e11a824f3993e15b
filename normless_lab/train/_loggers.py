"""Loggers: TensorBoard, a CSV file, and any object with the methods of Lightning Fabric's loggers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from normless.registry import Registry, check_arguments
from normless.spec import parse_call


class Logger(Protocol):
    """The methods that a logger needs, as those of Lightning and Lightning Fabric have them.

    `save()`, if there is one, is called after each group of metrics. `version` identifies what it logs to; a resumed
    run continues there.
    """

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log numbers by name at a step."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Log the configuration."""

    def finalize(self, status: str) -> None:
        """End the logging of a run with the status `success` or `aborted`."""


LOGGERS: Registry[Callable[..., Logger]] = Registry("logger", package="normless_lab")
"""Classes, or functions, that make a logger.

They are called with those of these arguments that they name: `directory`, the folder of the run; `name`, that of the
run; `version`, the one to continue, or None. So the classes of Lightning can be named as they are.
"""


def loggers_of(given: str | Logger | Sequence[str | Logger] | None) -> list[tuple[str, Callable[..., Logger]]]:
    """Return names and makers of the loggers that texts and objects are.

    A text is the name of one of `LOGGERS` or `MODULE:NAME`, with arguments if any, such as
    ``lightning.pytorch.loggers:WandbLogger(project='depth')``.

    Raises:
        ValueError: there is no such logger, it does not take these arguments, or an object lacks a method.
    """
    several = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    return [_made_by_text(one) if isinstance(one, str) else _made_of(one) for one in several]


def _made_by_text(text: str) -> tuple[str, Callable[..., Logger]]:
    name, options = parse_call(text)
    make = LOGGERS.find(name)
    named = {"directory", "name", "version"} & signature(make).parameters.keys() - options.keys()
    check_arguments(f"logger {name}", options, make, given=named)
    return name, lambda **given: _checked(make(**{key: given[key] for key in named}, **options))


def _made_of(logger: Any) -> tuple[str, Callable[..., Logger]]:
    _checked(logger)
    return type(logger).__name__, lambda **_: logger


def _checked(logger: Any) -> Any:
    """Return a logger; raise a ValueError if it lacks a method."""
    methods = ("log_metrics", "log_hyperparams", "finalize")
    missing = [method for method in methods if not callable(getattr(logger, method, None))]
    if missing or isinstance(logger, type):
        what = f"the class {logger.__name__}" if isinstance(logger, type) else f"an object of {type(logger).__name__}"
        raise ValueError(
            f"Expected a logger with the methods {', '.join(methods)}, or the name of one, {', '.join(LOGGERS)}; got "
            f"{what}" + (f" without {', '.join(missing)}." if missing else ".")
        )
    return logger


@LOGGERS.register("tensorboard")
def tensorboard(directory: Path) -> Logger:
    """TensorBoard, in the folder of the run."""
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(directory, name="tensorboard", version="", default_hp_metric=False)


@LOGGERS.register("csv")
class CSV:
    """Rows of step, name and value, in metrics.csv in the folder of the run."""

    version = "csv"

    def __init__(self, directory: Path, name: str, version: str | None) -> None:
        self._file = directory / "metrics.csv"
        if version is None:
            self._file.write_text("step,name,value\n", encoding="utf-8")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """See `Logger.log_metrics`."""
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(f"{step},{name},{value}\n" for name, value in metrics.items())

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Do nothing; they are in config.yaml."""

    def finalize(self, status: str) -> None:
        """Do nothing; every row is written at once."""
