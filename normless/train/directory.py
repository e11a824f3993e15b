"""The directory of a run: its configuration, its files, its result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from normless.errors import NormlessError
from normless.train.result import Report
from normless.train.settings import Settings

VOCABULARY_FILE = "vocabulary.json"

Config = TypeVar("Config", bound=Settings)
Result = TypeVar("Result", bound=Report)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends without an error.

    So a file is as it was or complete, whenever the process is killed.
    """
    part = path.with_name(f"{path.name}.part")
    yield part
    part.replace(path)


class RunDirectoryError(NormlessError, ValueError):
    """A directory is not usable for a run; the message says what it contains and what to do."""


class RunDirectory(Generic[Config, Result]):
    """Where a run of any kind keeps its files.

    `config.yaml` defines the run, `result.json` says how it ended, `checkpoint.pt` is its last finished epoch,
    `epochs.parquet` and `steps.parquet` are its curves, `tensorboard/` the same for TensorBoard, `probes/` the tables
    of probes; `vocabulary.json` its byte pairs, for ``tokenizers``, `translations.txt` the test set as translated by
    beam search, line by line. A run whose epochs are doubled keeps each training in its own `epochs-N/`.
    The types are those of what `config.yaml` and `result.json` hold.
    """

    def __init__(self, path: Path, config_type: type[Config], result_type: type[Result]) -> None:
        self.path = path
        self.config_type = config_type
        self.result_type = result_type
        self.config = path / "config.yaml"
        self.result = path / "result.json"
        self.checkpoint = path / "checkpoint.pt"
        self.epochs = path / "epochs.parquet"
        self.steps = path / "steps.parquet"
        self.tensorboard = path / "tensorboard"
        self.probes = path / "probes"
        self.vocabulary = path / VOCABULARY_FILE
        self.translations = path / "translations.txt"
        self._begin_run: Callable[[], None] = lambda: None

    def training(self, config: Config, epochs: int) -> RunDirectory[Config, Result]:
        """The directory of one training of a run whose epochs are doubled, by the run's configuration."""
        inner = RunDirectory(self.path / f"epochs-{epochs}", self.config_type, self.result_type)
        inner._begin_run = lambda: self.begin(config)
        return inner

    def check(self, config: Config) -> None:
        """Raise a RunDirectoryError unless the directory is empty of runs, or holds this very run."""
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
        differing = [name for name in {**wanted, **stored} if stored.get(name) != wanted.get(name)]
        if differing:
            there, here = self._stored_config().to_dict(), config.to_dict()
            changes = ", ".join(f"{name} is {there[name]!r} there and {here[name]!r} here" for name in differing)
            raise RunDirectoryError(
                f"{self.path} holds another run: {changes}. Name another directory, or start over there with "
                "resume=False (--restart)."
            )

    def begin(self, config: Config) -> None:
        """Make the directory, and that of the run around it, and write the configuration."""
        self._begin_run()
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced(self.config) as part:
            part.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")

    def clear(self) -> None:
        """Remove the files of a run and nothing else, the configuration last."""
        if not self.path.is_dir():
            return
        for file in [*self._files(), self.config]:
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)

    def stored_result(self) -> Result | None:
        """The result, or None of an unfinished run."""
        if not self.result.exists():
            return None
        return self.result_type.from_dict(json.loads(self.result.read_text(encoding="utf-8")))

    def store_result(self, result: Result) -> None:
        """Write the result."""
        with replaced(self.result) as part:
            part.write_text(json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")

    def stored_config(self) -> Config:
        """The configuration; a RunDirectoryError if there is no readable config.yaml."""
        if not self.config.is_file():
            raise RunDirectoryError(f"{self.path} holds no run: there is no {self.config}.")
        return self._stored_config()

    def _stored_config(self) -> Config:
        try:
            values: Any = yaml.safe_load(self.config.read_text(encoding="utf-8"))
            return self.config_type.from_dict(dict(values))
        except (yaml.YAMLError, ValueError, TypeError) as error:
            raise RunDirectoryError(f"{self.config} is not the configuration of a run: {error}") from error

    def _files(self) -> list[Path]:
        fixed = [self.result, self.checkpoint, self.epochs, self.steps, self.tensorboard, self.probes]
        fixed += [self.vocabulary, self.translations]
        return fixed + sorted([*self.path.glob("*.part"), *self.path.glob("epochs-*[0-9]")])
