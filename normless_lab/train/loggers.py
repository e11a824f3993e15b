"""Loggers by name: TensorBoard, Weights & Biases, MLflow and trackio, with the methods of Lightning's loggers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from normless.extras import named_missing
from normless.registry import Registry, check_arguments
from normless.spec import parse_call

if TYPE_CHECKING:
    import pandas as pd

# MLflow takes so many numbers, or settings, in one call.
_MOST_METRICS, _MOST_PARAMS = 1000, 100


class Logger(Protocol):
    """The methods that a logger needs, as those of Lightning and Lightning Fabric have them.

    A logger that has them also gets figures and findings: `log_image(key, images, step)` with the paths of PNG files,
    and `log_table(key, dataframe=…, step=…)`. `save()` is called after each group of metrics. `version` identifies
    what it logs to; a resumed run continues there.
    """

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log numbers by name at a step."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Log the configuration."""

    def finalize(self, status: str) -> None:
        """End the logging of a run with the status `success` or `aborted`."""


LOGGERS: Registry[Callable[..., Logger]] = Registry("logger", package="normless_lab")
"""Classes, or functions, called with the folder of the run, its name and the version to continue, or None."""


def loggers_of(given: str | Logger | Sequence[str | Logger] | None) -> list[tuple[str, Callable[..., Logger]]]:
    """Return names and makers of the loggers that texts, such as ``wandb(project='depth')``, and objects are.

    Raises:
        ValueError: there is no such logger, it does not take these arguments, or an object lacks a method.
        ModuleNotFoundError: its package is not installed.
    """
    several = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    return [_made_by_text(one) if isinstance(one, str) else _made_of(one) for one in several]


def _made_by_text(text: str) -> tuple[str, Callable[..., Logger]]:
    name, options = parse_call(text)
    make = LOGGERS.find(name)
    check_arguments(f"logger {name}", options, make, given=("directory", "name", "version"))
    package = getattr(make, "PACKAGE", None)
    if package is not None:
        _imported(package)
    return name, partial(make, **options)


def _made_of(logger: Any) -> tuple[str, Callable[..., Logger]]:
    methods = ("log_metrics", "log_hyperparams", "finalize")
    missing = [method for method in methods if not callable(getattr(logger, method, None))]
    if missing or isinstance(logger, type):
        what = f"the class {logger.__name__}" if isinstance(logger, type) else f"an object of {type(logger).__name__}"
        raise ValueError(
            f"Expected a logger with the methods {', '.join(methods)}, or the name of one, {', '.join(LOGGERS)}; got "
            f"{what}" + (f" without {', '.join(missing)}." if missing else ".")
        )
    return type(logger).__name__, lambda **_: logger


def _imported(package: str) -> Any:
    """Import the package of a logger, or raise the error that says how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise named_missing(f"The logger {package}", error) from error


@LOGGERS.register("tensorboard")
class TensorBoard:
    """TensorBoard, in the folder of the run."""

    version = "tensorboard"

    def __init__(self, directory: Path, name: str, version: str | None) -> None:
        self._folder = directory / "tensorboard"
        self._settings: Mapping[str, Any] = {}
        self._board: Any = None

    def _from(self, step: int | None) -> Any:
        """Return the writer; what an interrupted process wrote of this and later steps is not shown."""
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            made: Any = SummaryWriter
            self._board = made(self._folder, purge_step=step)
            if self._settings:
                rows = [{"setting": name, "value": value} for name, value in self._settings.items()]
                self._board.add_text("configuration", _markdown(rows), step)
        return self._board

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """See `Logger.log_metrics`."""
        for name, value in metrics.items():
            self._from(step).add_scalar(name, value, step)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """See `Logger.log_hyperparams`; written with the first numbers."""
        self._settings = params

    def log_image(self, key: str, images: Sequence[Path], step: int | None = None) -> None:
        """Show PNG files."""
        import numpy as np
        from PIL import Image

        for path in images:
            with Image.open(path) as image:
                self._from(step).add_image(key, np.asarray(image.convert("RGB")), step, dataformats="HWC")

    def log_table(self, key: str, dataframe: pd.DataFrame, step: int | None = None) -> None:
        """Show a table as text."""
        self._from(step).add_text(key, _markdown(dataframe.to_dict("records")), step)

    def save(self) -> None:
        """Write what was logged to the file."""
        if self._board is not None:
            self._board.flush()

    def finalize(self, status: str) -> None:
        """Close the file."""
        if self._board is not None:
            self._board.close()


def _markdown(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Format rows as a table in Markdown."""
    cells = [list(map(str, rows[0])), ["---"] * len(rows[0]), *(list(map(str, row.values())) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in row)} |" for row in cells)


@LOGGERS.register("wandb")
class WeightsAndBiases:
    """Weights & Biases; the options are those of `wandb.init`, as mode='offline'."""

    PACKAGE = "wandb"

    def __init__(
        self, directory: Path, name: str, version: str | None, project: str = "normless", **options: Any
    ) -> None:
        self._package = _imported(self.PACKAGE)
        # Several runs may be trained side by side in a process, and their output is that of the command.
        own = {"settings": self._package.Settings(console="off", silent=True), "reinit": "create_new"}
        asked = {"project": project, "name": name, "id": version, "resume": version and "allow"}
        self._run = self._package.init(**(own | asked | options))
        self.version = str(self._run.id)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """See `Logger.log_metrics`."""
        self._run.log(metrics, step=step)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """See `Logger.log_hyperparams`."""
        self._run.config.update(params, allow_val_change=True)

    def log_image(self, key: str, images: Sequence[Path], step: int | None = None) -> None:
        """Log PNG files."""
        self._run.log({key: [self._package.Image(str(path)) for path in images]}, step=step)

    def log_table(self, key: str, dataframe: pd.DataFrame, step: int | None = None) -> None:
        """Log a table."""
        self._run.log({key: self._package.Table(dataframe=dataframe)}, step=step)

    def finalize(self, status: str) -> None:
        """Finish the run."""
        self._run.finish(exit_code=int(status != "success"))


@LOGGERS.register("mlflow")
class MLflow:
    """MLflow, at its tracking URI, such as sqlite:///mlflow.db, or that of MLFLOW_TRACKING_URI."""

    PACKAGE = "mlflow"

    def __init__(
        self,
        directory: Path,
        name: str,
        version: str | None,
        experiment: str = "normless",
        tracking_uri: str | None = None,
    ) -> None:
        self._entities = _imported(f"{self.PACKAGE}.entities")
        self._client = _imported(self.PACKAGE).MlflowClient(tracking_uri=tracking_uri)
        self._waiting: list[Any] = []
        if version is None:
            found = self._client.get_experiment_by_name(experiment)
            home = self._client.create_experiment(experiment) if found is None else found.experiment_id
            version = self._client.create_run(home, run_name=name).info.run_id
        else:
            self._client.update_run(version, status="RUNNING")
        self.version = version

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """See `Logger.log_metrics`; they are sent by `save`."""
        now = int(time.time() * 1000)
        self._waiting += [self._entities.Metric(name, value, now, step or 0) for name, value in metrics.items()]

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """See `Logger.log_hyperparams`."""
        settings = [self._entities.Param(name, str(value)) for name, value in params.items()]
        for start in range(0, len(settings), _MOST_PARAMS):
            self._client.log_batch(self.version, params=settings[start : start + _MOST_PARAMS])

    def log_image(self, key: str, images: Sequence[Path], step: int | None = None) -> None:
        """Keep PNG files among the artifacts."""
        for path in images:
            self._client.log_artifact(self.version, str(path), key.rpartition("/")[0])

    def log_table(self, key: str, dataframe: pd.DataFrame, step: int | None = None) -> None:
        """Keep a table among the artifacts, as JSON."""
        self._client.log_dict(self.version, dataframe.to_dict("list"), f"{key}.json")

    def save(self) -> None:
        """Send the numbers."""
        while self._waiting:
            self._client.log_batch(self.version, metrics=self._waiting[:_MOST_METRICS])
            del self._waiting[:_MOST_METRICS]

    def finalize(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self.version, "FINISHED" if status == "success" else "KILLED")


@LOGGERS.register("trackio")
class Trackio:
    """trackio, on this machine; the options are those of `trackio.init`, as space_id='USER/SPACE'."""

    PACKAGE = "trackio"

    def __init__(
        self, directory: Path, name: str, version: str | None, project: str = "normless", **options: Any
    ) -> None:
        self._package = _imported(self.PACKAGE)
        # Names identify its runs; those of run folders may repeat.
        self.version = version or f"{name}-{time.time_ns():x}"
        # Standard output is the command's.
        with redirect_stdout(sys.stderr):
            self._run = self._package.init(project=project, name=self.version, resume="allow", **options)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """See `Logger.log_metrics`."""
        self._run.log(metrics, step=step)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """See `Logger.log_hyperparams`."""
        self._run.config.update(params)

    def log_image(self, key: str, images: Sequence[Path], step: int | None = None) -> None:
        """Log PNG files."""
        for path in images:
            self._run.log({key: self._package.Image(str(path))}, step=step)

    def log_table(self, key: str, dataframe: pd.DataFrame, step: int | None = None) -> None:
        """Log a table."""
        self._run.log({key: self._package.Table(dataframe=dataframe)}, step=step)

    def finalize(self, status: str) -> None:
        """Finish the run."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
