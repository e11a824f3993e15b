"""The laboratory: execute each run once, and store its row and optionally its weights."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import URL

from normless.code_names import name_code
from normless.errors import NormlessError
from normless_lab.sweeps._card import CardExecutor, uses_card
from normless_lab.sweeps._dispatch import Attempt, LaboratoryListener, dispatch
from normless_lab.sweeps._processes import Executor, ExecutorFactory, LocalExecutor, WorkerDiedError
from normless_lab.sweeps._result_tables import SweepResult, needed_runs
from normless_lab.sweeps._runs import RunRow, check_run
from normless_lab.sweeps._store import RunState, sqlite_url
from normless_lab.sweeps._sweep import Sweep, SweepError
from normless_lab.train import RunConfig, Settings
from normless_lab.train._pauses import TerminatedError, on_sigterm

if TYPE_CHECKING:
    from normless.probes import RideAlong

Result = TypeVar("Result")

# Seconds between two looks of a shard that waits for the others.
SECONDS_BETWEEN_LOOKS = 2.0


class RunWeightsError(NormlessError):
    """The weights of a run do not exist; the message names the run and the reason."""


@dataclass(frozen=True)
class Shard:
    """The runs with a hash that, as a number, is `index` − 1 modulo `count`: one of `count` equal parts of all runs.

    An index outside 1..count raises a ValueError.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"Expected a shard from 1/n to n/n, as 2/8, got {self.index}/{self.count}.")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the shard of a text such as 2/8; raise a ValueError for other texts."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal()):
            raise ValueError(f"Expected a shard from 1/n to n/n, as 2/8, got {text!r}.")
        return cls(int(index), int(count))

    def takes(self, config_hash: str) -> bool:
        """Return whether the run with this hash (hexadecimal) belongs to the shard."""
        return int(config_hash, 16) % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Laboratory:
    """Execute runs in worker processes and store a row for each; a context manager.

    Only runs without a row are executed. Each running run has a folder with its checkpoints, from which it resumes
    after an interruption. The worker processes start on first use and are reused until the context ends. Runs that
    use a GPU of this machine are executed there side by side, see `CardExecutor`.

    Args:
        folder: folder of the running runs, the kept weights and the SQLite table; created with the first run.
        url: SQLAlchemy URL of the database; `runs.sqlite` in the folder if None.
        workers: number of local processes, which share the cores and, without `together`, the GPUs; one per core if
            None.
        together: number of simultaneous runs in the process of a GPU; if None, as many as memory and gain allow.
        executor: creates the executor of all runs; local processes if None.
        shard: part of the runs that is executed here; the other runs are only read.
        wait: whether `run` also waits for the runs of the other shards.
        listener: notified of finished runs.
        seconds_left: returns the seconds that remain for runs; at 0 no further run begins, those in progress are
            saved, and a TimeLimitError is raised. No limit if None.

    Attributes:
        asked: hashes of all requested runs, including those that were finished before.

    Raises:
        StateError: the table cannot be opened or, by any method, read or written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        url: str | URL | None = None,
        workers: int | None = None,
        together: int | None = None,
        executor: ExecutorFactory | None = None,
        shard: Shard | None = None,
        wait: bool = False,
        listener: LaboratoryListener | None = None,
        seconds_left: Callable[[], float] | None = None,
    ) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.kept = folder / "weights"
        self.shard = shard
        self.wait = wait
        self.seconds_left = seconds_left
        self._checked: set[str] = set()
        self.listener = listener or LaboratoryListener()
        self.asked: set[str] = set()
        self._factory: ExecutorFactory = executor or partial(LocalExecutor, workers)
        self._on_cards: ExecutorFactory = self._factory
        if executor is None and (workers is None or together is not None):
            self._on_cards = partial(CardExecutor, together)
        self._open = ExitStack()
        self._executors: dict[ExecutorFactory, Executor] = {}
        place = sqlite_url(folder / "runs.sqlite") if url is None else url
        self.state = self._open.enter_context(RunState(place, on_wait=self.listener.on_wait))
        # Ends the processes of a laboratory that was not closed.
        self._finalizer = weakref.finalize(self, self._open.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and close the table."""
        self._finalizer.detach()
        self._executors.clear()
        self._open.close()

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """Execute a sweep, and extend its learning rates while an optimum lies at an end of them.

        Rates are added as in `RateGrid.beyond`, once all runs of a combination are finished. Each shard executes its
        part; with `wait` it then waits for the others, and takes part in the extensions that their runs require.
        Without `wait`, start the shards again until `missing` is 0. The metrics are columns of the table of runs;
        each metric has its own optimum.

        Raises:
            SweepError: the data, network or scheme of some combinations is not available; runs were not begun.
            TimeLimitError: no seconds are left; the same call goes on.
        """
        return self.run_all([sweep], metrics=metrics)[0]

    def run_all(self, sweeps: Sequence[Sweep], *, metrics: Sequence[str] = ("test_accuracy",)) -> list[SweepResult]:
        """As `run`, of several sweeps, whose runs are executed side by side."""
        while True:
            needed = [needed_runs(sweep, metrics, self.state.read) for sweep in sweeps]
            missing: dict[tuple[bool, str | None], dict[str, Settings]] = {}
            for own in needed:
                self.asked.update(name for name, _ in own.points)
                runs = {name: point.config for name, point in own.missing.items() if self._takes(name)}
                missing.setdefault((own.sweep.keep_weights, own.sweep.time_limit), {}).update(runs)
            if any(missing.values()):
                self._check({name: config for runs in missing.values() for name, config in runs.items()})
                finished = sum(len(own.rows) for own in needed)
                for (keep, limit), runs in missing.items():
                    options = {} if limit is None else {"time_limit": limit}
                    self._carry_out(runs, finished=finished, keep=self.kept if keep else None, options=options)
            elif self.wait and any(own.missing for own in needed):
                time.sleep(SECONDS_BETWEEN_LOOKS)
            else:
                return [own.result() for own in needed]

    def read(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """Return the tables of the finished runs of a sweep without executing runs."""
        return needed_runs(sweep, metrics, self.state.read).result()

    def carry_out(self, configs: Sequence[Settings]) -> list[RunRow]:
        """Execute the runs without a row, and return all rows; with a shard, only the rows that exist.

        The rows are in the order of the configurations, with outcome `failed` for runs that raised an error.
        """
        names = [config.hash for config in configs]
        # The rows name the kinds of these runs.
        name_code(*{config.KIND for config in configs})
        self.asked.update(names)
        mine = {name: config for name, config in zip(names, configs, strict=True) if self._takes(name)}
        finished = self.state.finished(mine)
        self._carry_out({name: mine[name] for name in mine if name not in finished}, finished=len(finished))
        rows = self.state.read(names)
        return [rows[name] for name in names if name in rows]

    def weights(
        self, configs: Sequence[Settings], *, ride_along: RideAlong | None = None, keep: Path | None = None
    ) -> list[Path]:
        """Return the folders of finished runs, with their checkpoints; execute runs without a kept folder.

        `normless_lab.train.trained_network` reads a folder. With probes, `probes/` in each folder has their tables,
        as in `train`. The rows of the runs are stored in each case, since probes do not change a run.

        Args:
            ride_along: probes of the runs, which must be picklable; they need a folder `keep` of their own, and these
                runs have no logger.
            keep: the folder for the folders of the runs; that of the laboratory's weights if None.

        Raises:
            WeightsError: a run failed or belongs to another shard.
        """
        kept = self.kept if keep is None else keep
        runs = {config.hash: config for config in configs}
        self.asked.update(runs)
        missing = {name: runs[name] for name in runs if not (kept / name).exists() and self._takes(name)}
        # An interrupted run without the probes would resume with tables of its last epochs.
        work = None if ride_along is None else kept.with_name(f"{kept.name}.part")
        options = {} if ride_along is None else {"ride_along": ride_along, "logger": None}
        self._carry_out(missing, finished=len(runs) - len(missing), keep=kept, options=options, work=work)
        if work is not None:
            with suppress(OSError):
                work.rmdir()
        for name in runs:
            if not (kept / name).exists():
                row = self.state.read([name]).get(name)
                end = "belongs to another shard" if row is None else row.error or f"ended as {row.outcome}"
                raise RunWeightsError(f"The weights of run {name[:8]} are not in {kept / name}: it {end}.")
        return [kept / name for name in runs]

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Call a function, importable by name, in a worker process; its result is not stored."""
        return self._entered(self._factory).submit(function, *args)

    def _takes(self, name: str) -> bool:
        return self.shard is None or self.shard.takes(name)

    def _factory_of(self, config: Settings) -> ExecutorFactory:
        """Return the function that creates the executor of a run."""
        return self._on_cards if self._on_cards is not self._factory and uses_card(config) else self._factory

    def _entered(self, factory: ExecutorFactory) -> Executor:
        if factory not in self._executors:
            self._executors[factory] = self._open.enter_context(factory())
        return self._executors[factory]

    def _check(self, runs: Mapping[str, Settings]) -> None:
        """Check one run for each new combination of data, network and scheme, in the worker processes."""
        distinct: dict[str, RunConfig] = {}
        for config in runs.values():
            if isinstance(config, RunConfig):
                key = repr((config.KIND, config.model, config.scheme, config.data, dict(config.contents)))
                distinct.setdefault(key, config)
        folder, futures = str(self.work / "check"), {}
        for key, config in distinct.items():
            if key not in self._checked:
                executor = self._entered(self._factory_of(config))
                futures[key] = executor.submit(check_run, config.KIND, config.to_dict(), folder, group=key)
        errors: dict[str, list[str]] = {}
        for key, future in futures.items():
            # The death of a process, for example for lack of memory, is not evidence about the settings.
            with suppress(WorkerDiedError):
                error = future.result()
                if error is not None:
                    config = distinct[key]
                    errors.setdefault(error, []).append(f"{config.model} with {config.scheme} on {config.data}")
        if errors:
            raise SweepError(
                "No run was begun, since some cannot start: "
                + "; ".join(f"{_first_of(names)}: {error}" for error, names in errors.items())
            )
        self._checked |= distinct.keys()

    def _carry_out(
        self,
        runs: Mapping[str, Settings],
        *,
        finished: int,
        keep: Path | None = None,
        options: Mapping[str, Any] | None = None,
        work: Path | None = None,
    ) -> None:
        """Execute runs, by hash, in `work`; their folders are moved to `keep`; `options` as in `carry_out_run`."""
        attempts = [Attempt(name, config, work or self.work, keep, options or {}) for name, config in runs.items()]
        self.execute(attempts, finished=finished)

    def execute(self, attempts: Sequence[Attempt], *, finished: int = 0) -> None:
        """Execute runs, of several sweeps for example; `finished` others have a row.

        TimeLimitError if no seconds are left.
        """
        if not attempts:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state.create()
        self.listener.on_begin(len(attempts), finished)
        parts: dict[ExecutorFactory, list[Attempt]] = {}
        for attempt in attempts:
            parts.setdefault(self._factory_of(attempt.config), []).append(attempt)
        for factory, part in parts.items():
            executor = self._entered(factory)
            try:
                with on_sigterm(_terminate):
                    dispatch(part, executor, self.state, self.listener, left=self.seconds_left)
            except BaseException as error:
                # End what still runs now; it resumes from its checkpoints when requested again.
                del self._executors[factory]
                executor.__exit__(type(error), error, error.__traceback__)
                raise
        self.listener.on_end()


def _first_of(names: Sequence[str]) -> str:
    others = len(names) - 1
    return names[0] + (f" and {others} other kind{'s' if others > 1 else ''} of run" if others else "")


def _terminate() -> None:
    raise TerminatedError("The sweep was told to end (SIGTERM); its runs are saved, and the same command goes on.")
