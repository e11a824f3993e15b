"""The directory of a run: its configuration, its files, its result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from normless.code_names import names_of_data, remember_code
from normless.errors import NormlessError
from normless.saving import Digests, replaced
from normless_lab.process import read_yaml
from normless_lab.train._result import Report
from normless_lab.train._settings import Settings

# Of `contents.json`: the hashes that the settings in config.yaml may have.
SETTINGS = "config.yaml, by its settings"


class RunDirectoryError(NormlessError, ValueError):
    """A directory cannot be used for a run; the message says what it contains and what to do."""


class RunDirectory:
    """The directory with the files of a run of any kind.

    `config.yaml` defines the run, `result.json` says how it ended, `checkpoint.pt` is its last checkpoint and, until
    it ends, `checkpoint.previous.pt` the one before, `epochs.parquet` and `steps.parquet` are its curves,
    `tensorboard/` and `metrics.csv` the same by loggers, `loggers.json` what loggers have, `unfinished.csv` the
    losses of an epoch under way, `findings.json` what a watch says of the training, `probes/` the tables of probes;
    `digests.json` the SHA-256 of files that are read again, `contents.json` that of the user's own files, of the
    settings and the provenance of the data; `files` are those of its kind of run. If a run has several trainings,
    each has its own folder `epochs-N/`. A process that trains locks `run.lock`. `former/` holds the previous run
    after a restart.
    """

    def __init__(
        self, path: Path, config_type: type[Settings], result_type: type[Report], files: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.config_type = config_type
        self.result_type = result_type
        self.config = path / "config.yaml"
        self.result = path / "result.json"
        self.checkpoint = path / "checkpoint.pt"
        self.previous_checkpoint = path / "checkpoint.previous.pt"
        self.epochs = path / "epochs.parquet"
        self.steps = path / "steps.parquet"
        self.tensorboard = path / "tensorboard"
        self.metrics = path / "metrics.csv"
        self.unfinished = path / "unfinished.csv"
        self.findings = path / "findings.json"
        self.loggers = path / "loggers.json"
        self.probes = path / "probes"
        self.files = tuple(files)
        self.former = path / "former"
        self.leaving = path / "former.part"
        self.digests = Digests(path)
        self.contents = path / "contents.json"
        self.starts_over = False
        self.lengthens = False
        self.lock = path / "run.lock"
        self._lock = FileLock(self.lock)
        self._begin_run: Callable[[], None] = self._take_lock

    def training(self, config: Settings, epochs: int) -> RunDirectory:
        """Return the directory of one of several trainings of a run, by the run's configuration."""
        inner = RunDirectory(self.path / f"epochs-{epochs}", self.config_type, self.result_type, self.files)
        inner._begin_run = lambda: self.begin(config)
        inner.starts_over = self.starts_over
        return inner

    def check(self, config: Settings) -> None:
        """Raise a RunDirectoryError unless the directory is empty of runs, or holds this very run."""
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"Expected a directory for the run, but {self.path} is a file; name another.")
        self._refuse_links()
        if self.leaving.exists():
            self._take_lock()
            self._return_or_set_aside()
        if not self.config.exists():
            # A process that was killed as it began may have left these, and parts of files.
            early = {self.contents, self.digests.path, self.lock, *self.path.glob("*.part")}
            left = [file.name for file in self._files() if file not in early]
            if left:
                raise RunDirectoryError(
                    f"{self.path} holds {', '.join(left)} but no config.yaml that says of which run; "
                    "name another directory."
                )
            return
        if self.starts_over:
            return
        former = self._stored_config()
        self._check_unedited(former)
        stored, wanted = former.fields_of_identity(), config.fields_of_identity()
        differing = [name for name in {**wanted, **stored} if stored.get(name) != wanted.get(name)]
        self._check_contents(config.contents)
        if "devices" in differing and not self.result.exists():
            # Another number of processes goes on with the same batches.
            differing.remove("devices")
        if differing == ["epochs"] and config.epochs > former.epochs and config.is_one_training:
            if not (config.is_open_ended or self.lengthens):
                raise RunDirectoryError(
                    f"{self.path} holds the same run of {former.epochs} epochs, and its schedule depends on their "
                    f"number: a run of {config.epochs} has other rates from its first step on. Name another "
                    "directory, or go on at the rates of the longer one with lengthen=True (--lengthen)."
                )
        elif differing:
            there, here = former.to_dict(), config.to_dict()
            changes = ", ".join(f"{name} is {there[name]!r} there and {here[name]!r} here" for name in differing)
            raise RunDirectoryError(
                f"{self.path} holds another run: {changes}. Name another directory, or start over there with "
                "resume=False (--restart)."
            )

    def _refuse_links(self) -> None:
        """Raise a RunDirectoryError if a file or folder of a run is a link: what it names belongs to others."""
        own = [*self._files(), self.config, self.former, self.leaving]
        link = next((file for file in own if file.is_symlink()), None)
        if link is not None:
            raise RunDirectoryError(
                f"{link} is a link, and a run writes and removes only what is in its own directory: replace the link "
                "by what it names, or name another directory."
            )

    def _check_contents(self, contents: Mapping[str, str]) -> None:
        """Raise a RunDirectoryError if the run began with another content of the user's files, or other data."""
        stored = self._recorded()
        changed = [name for name, digest in contents.items() if stored.get(name, digest) != digest]
        if changed:
            raise RunDirectoryError(
                f"{self.path} holds a run of another content of {', '.join(changed)}, which has changed since then. "
                f"Restore it, name another directory, or start over there with resume=False (--restart). It is in "
                f"{self.contents.name}: delete that file if the change does not matter."
            )

    def _check_unedited(self, stored: Settings) -> None:
        """Raise a RunDirectoryError if config.yaml has other settings than those of the run that wrote it."""
        written = self._recorded().get(SETTINGS, [stored.hash_of_fields])
        if stored.hash_of_fields not in written:
            raise RunDirectoryError(
                f"{self.config} was edited: its settings are not those of the run in {self.path}. Restore it, name "
                "another directory for the new settings, or start over there with resume=False (--restart)."
            )

    def _recorded(self) -> dict[str, Any]:
        """Return what `contents.json` holds; empty without the file. RunDirectoryError if it is damaged."""
        if not self.contents.exists():
            return {}
        self.check_intact(self.contents)
        recorded: dict[str, Any] = json.loads(self.contents.read_text(encoding="utf-8"))
        return recorded

    def _record(self, values: Mapping[str, Any]) -> None:
        with self.digests.replaced(self.contents) as part:
            part.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def begin(self, config: Settings, data: str | None = None) -> None:
        """Create the directory and that of the surrounding run, and write the configuration and digests of its files.

        A run that starts over moves the files of the one before to `former/`, in place of what is there. One that is
        resumed on data of another provenance than `data` is a RunDirectoryError.
        """
        self._begin_run()
        self.path.mkdir(parents=True, exist_ok=True)
        if self.starts_over and self.config.exists():
            self._set_aside()
        self.starts_over = False
        recorded = dict(config.contents) | ({} if data is None else {"the data, by its provenance": data})
        if not self.config.exists():
            self._record(recorded | {SETTINGS: [config.hash_of_fields]})
        else:
            self._check_contents(recorded)
            former = self._stored_config()
            if former.hash_of_fields != config.hash_of_fields and self.contents.exists():
                # Both, since the process may be killed before the configuration is written.
                self._record(self._recorded() | {SETTINGS: [config.hash_of_fields, former.hash_of_fields]})
            if former.epochs != config.epochs:
                # The result of the shorter run is not the result of the lengthened run.
                self.result.unlink(missing_ok=True)
        with replaced(self.config) as part:
            part.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        remember_code(*(value for value in config.to_dict().values() if isinstance(value, str)))

    def end(self) -> None:
        """Release the directory for other processes."""
        self._lock.release()

    def _take_lock(self) -> None:
        """Lock the directory for this process; the system unlocks it when the process dies."""
        if self._lock.is_locked:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            # `normless watch` has it for a moment whenever it looks.
            self._lock.acquire(timeout=0.5)
        except Timeout as error:
            raise RunDirectoryError(
                f"Another process trains in {self.path}; wait until it has finished, or name another directory."
            ) from error

    def _set_aside(self) -> None:
        """Move only the files of a run, the configuration last, to `former/`, in place of what is there.

        A run without a checkpoint, as of a restart that is repeated, is removed instead if there is a former one.
        """
        files = [file for file in [*self._files(), self.config] if file != self.lock]
        if self.former.exists() and not {self.checkpoint, self.result, *self.path.glob("epochs-*[0-9]")} & {*files}:
            for file in files:
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            return
        self.leaving.mkdir()
        for file in files:
            file.rename(self.leaving / file.name)
        self._return_or_set_aside()

    def _return_or_set_aside(self) -> None:
        """Complete a restart if every file was moved; if it was killed before that, move the files back."""
        if self.config.exists():
            for file in self.leaving.iterdir():
                file.rename(self.path / file.name)
            self.leaving.rmdir()
        else:
            if self.former.exists():
                shutil.rmtree(self.former)
            self.leaving.rename(self.former)

    def check_intact(self, *files: Path) -> None:
        """Raise a RunDirectoryError if a file differs from what the run wrote."""
        for file in files:
            if not self.digests.is_intact(file):
                raise RunDirectoryError(
                    f"{file} is damaged: it is not as the run wrote it. Restore it from a copy, or start over with "
                    "resume=False (--restart)."
                )

    def stored_result(self, config: Settings | None = None) -> Any:
        """Return the result; None if the run is unfinished or starts over.

        Raise a RunDirectoryError if the result is damaged.

        With `config`, return None also if the stored run has fewer epochs.
        """
        if self.starts_over or not self.result.exists():
            return None
        if config is not None and self.config.exists() and self._stored_config().epochs < config.epochs:
            return None
        self.check_intact(self.result, self.epochs, self.steps)
        return self.result_type.from_dict(json.loads(self.result.read_text(encoding="utf-8")))

    def store_result(self, result: Report) -> None:
        """Write the result."""
        with self.digests.replaced(self.result) as part:
            part.write_text(json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        # Only a longer run continues from the checkpoints of a finished run, and it needs only the last.
        self.previous_checkpoint.unlink(missing_ok=True)

    def stored_config(self) -> Any:
        """Return the configuration; raise a RunDirectoryError if config.yaml is missing or unreadable."""
        if not self.config.is_file():
            raise RunDirectoryError(f"{self.path} holds no run: there is no {self.config}.")
        return self._stored_config()

    def _stored_config(self) -> Any:
        try:
            with names_of_data(self.config):
                return self.config_type.from_dict(dict(read_yaml(self.config)))
        except (ValueError, TypeError) as error:
            raise RunDirectoryError(f"{self.config} is not the configuration of a run: {error}") from error

    def _files(self) -> list[Path]:
        """Return the files of a run that are there, except `config.yaml` and the previous run."""
        own = {file for file in vars(self).values() if isinstance(file, Path)} | {self.digests.path}
        own |= {*(self.path / name for name in self.files), *self.path.glob("*.part")}
        own |= {*self.path.glob("epochs-*[0-9]")}
        return sorted(
            file
            for file in own - {self.path, self.config, self.former, self.leaving}
            if file.exists() or file.is_symlink()
        )
