"""The directory of a run: which run it holds, and what that run left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import yaml

from normless.errors import NormlessError
from normless.train.atomic_write import replaced
from normless.train.config import TrainConfig
from normless.train.report import Report
from normless.train.result import RunResult
from normless.train.settings import Settings

Config = TypeVar("Config", bound=Settings)
Result = TypeVar("Result", bound=Report)


class RunDirectoryError(NormlessError, ValueError):
    """A directory cannot take a run; the message says what it holds and what to do."""


class Directory(Generic[Config, Result]):
    """Where a run of any kind keeps its files.

    `config.yaml` says which run it is, `result.json` how it ended, `checkpoint.pt` holds its last finished epoch,
    `epochs.parquet` and `steps.parquet` its curves, `tensorboard/` the same for TensorBoard, `probes/` what probes
    measured along it.

    Attributes:
        CONFIG, RESULT: what `config.yaml` and `result.json` hold.
    """

    CONFIG: ClassVar[type[Settings]]
    RESULT: ClassVar[type[Report]]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.result = path / "result.json"
        self.checkpoint = path / "checkpoint.pt"
        self.epochs = path / "epochs.parquet"
        self.steps = path / "steps.parquet"
        self.tensorboard = path / "tensorboard"
        self.probes = path / "probes"

    def check(self, config: Config) -> None:
        """See that the directory holds nothing, or this very run.

        Raises:
            RunDirectoryError: it is a file, holds another run, or the files of a run of which nothing is known.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"Expected a directory for the run, but {self.path} is a file; name another.")
        if not self.config.exists():
            left = [file.name for file in self._files() if file.exists()]
            if left:
                raise RunDirectoryError(
                    f"{self.path} holds {', '.join(left)} but no config.yaml that says of which run; "
                    "name another directory, or start over there with resume=False (--restart)."
                )
            return
        stored, wanted = self._stored_config().identity(), config.identity()
        differing = [name for name in wanted if stored[name] != wanted[name]]
        if differing:
            changes = ", ".join(f"{name} is {stored[name]!r} there and {wanted[name]!r} here" for name in differing)
            raise RunDirectoryError(
                f"{self.path} holds another run: {changes}. Name another directory, or start over there with "
                "resume=False (--restart)."
            )

    def begin(self, config: Config) -> None:
        """Make the directory and write which run it holds."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced(self.config) as part:
            part.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")

    def clear(self) -> None:
        """Remove the files of a run and nothing else; which run it was goes last."""
        if not self.path.is_dir():
            return
        for file in [*self._files(), self.config]:
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)

    def stored_result(self) -> Result | None:
        """How the run ended, or None where it has not."""
        if not self.result.exists():
            return None
        return cast(Result, self.RESULT.from_dict(json.loads(self.result.read_text(encoding="utf-8"))))

    def store_result(self, result: Result) -> None:
        """Write how the run ended."""
        with replaced(self.result) as part:
            part.write_text(json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")

    def stored_config(self) -> Config:
        """Which run the directory holds.

        Raises:
            RunDirectoryError: it holds none, or its config.yaml cannot be read.
        """
        if not self.config.is_file():
            raise RunDirectoryError(f"{self.path} holds no run: there is no {self.config}.")
        return self._stored_config()

    def check_trained(self) -> None:
        """See that the run has weights to show.

        Raises:
            RunDirectoryError: it finished no epoch.
        """
        if not self.checkpoint.exists():
            raise RunDirectoryError(f"The run in {self.path} has no checkpoint: it finished no epoch of its own.")

    def _stored_config(self) -> Config:
        try:
            values: Any = yaml.safe_load(self.config.read_text(encoding="utf-8"))
            return cast(Config, self.CONFIG.from_dict(dict(values)))
        except (yaml.YAMLError, ValueError, TypeError) as error:
            raise RunDirectoryError(f"{self.config} is not the configuration of a run: {error}") from error

    def _files(self) -> list[Path]:
        fixed = [self.result, self.checkpoint, self.epochs, self.steps, self.tensorboard, self.probes]
        return fixed + sorted(self.path.glob("*.part"))


class RunDirectory(Directory[TrainConfig, RunResult]):
    """Where an image run keeps its files; one whose epochs are doubled keeps each training in its own `epochs-N/`."""

    CONFIG = TrainConfig
    RESULT = RunResult

    def _files(self) -> list[Path]:
        return super()._files() + sorted(self.path.glob("epochs-*[0-9]"))
