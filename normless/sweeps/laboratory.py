"""Runs and whole sweeps carried out once: what has a row in the table of finished runs is not run again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from normless.sweeps.dispatch import dispatch
from normless.sweeps.executors.executor import Executor, ExecutorFactory
from normless.sweeps.executors.local import LocalExecutor
from normless.sweeps.listener import LaboratoryListener
from normless.sweeps.pending import needed_runs
from normless.sweeps.row import RunRow
from normless.sweeps.shard import Shard
from normless.sweeps.store import RunState, sqlite_url
from normless.sweeps.sweep import Sweep
from normless.sweeps.sweep_result import SweepResult
from normless.train import Settings

__all__ = ["Laboratory", "SweepResult"]


class Laboratory:
    """Carries out runs in other processes, and keeps how they ended.

    A set of runs is carried out by running those that have no row in the table yet. A run in flight has its own
    folder with its checkpoints, so that whatever is killed goes on where it was when the same is asked for again. A
    context manager that ends the processes; they are started when first needed, and stay warm from one call to the
    next.

    Args:
        folder: for the runs in flight, and for the table where no other is named; made if missing.
        url: SQLAlchemy's, of the database with the table; `runs.sqlite` in the folder if None.
        workers: processes on this machine, which share its cores; one per core if None.
        executor: makes what executes the runs instead.
        shard: the part of all runs that is carried out here; others are only read.
        listener: told of every run that is finished.

    Attributes:
        asked: hashes of all runs that were asked for, finished before or not; who wants to know those of one piece of
            work clears it first.

    Raises:
        StateError: the table cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        *,
        url: str | None = None,
        workers: int | None = None,
        executor: ExecutorFactory | None = None,
        shard: Shard | None = None,
        listener: LaboratoryListener | None = None,
    ) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.shard = shard
        self.listener = listener or LaboratoryListener()
        self.asked: set[str] = set()
        self._factory: ExecutorFactory = executor or partial(LocalExecutor, workers)
        self._open = ExitStack()
        self._executor: Executor | None = None
        self.state = self._open.enter_context(RunState(url or sqlite_url(folder / "runs.sqlite")))
        # Who forgets to close a laboratory leaves no processes behind.
        self._finalizer = weakref.finalize(self, self._open.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finalizer.detach()
        self._executor = None
        self._open.__exit__(kind, error, trace)

    def close(self) -> None:
        """End the processes and close the table."""
        self.__exit__(None, None, None)

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """Carry out a sweep, extending its learning rates while an optimum lies at an end of them.

        Rates are added to the combinations concerned alone, as `RateGrid.beyond` says. Of shards each carries out its
        part of what is known to be needed: rates are added once all runs of a combination are finished, so the last
        shards are to be started again until `missing` is 0.

        Args:
            sweep: what to run.
            metrics: columns of the table of runs whose optima are wanted, each on its own.

        Returns:
            The tables of all finished runs, and how many are missing.

        Raises:
            StateError: the table cannot be read or written.
        """
        while True:
            needed = needed_runs(sweep, metrics, self.state.read)
            self.asked.update(name for name, _ in needed.points)
            missing = {name: point.config for name, point in needed.missing.items() if self._takes(name)}
            if not missing:
                return needed.result()
            self._carry_out(missing, finished=len(needed.rows))

    def read(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """The tables of a sweep as far as it is finished; nothing is run.

        Raises:
            StateError: the table cannot be read.
        """
        return needed_runs(sweep, metrics, self.state.read).result()

    def carry_out(self, configs: Sequence[Settings]) -> list[RunRow]:
        """Carry out runs, or read back those that are finished.

        Returns:
            Their rows in the order of the configurations; a run that raised has one with outcome `failed`. In a
            shard, only those that are finished, here or elsewhere.

        Raises:
            StateError: the table cannot be read or written.
        """
        named = [(config.hash, config) for config in configs]
        self.asked.update(name for name, _ in named)
        mine = {name: config for name, config in named if self._takes(name)}
        finished = self.state.finished(mine)
        missing = {name: config for name, config in mine.items() if name not in finished}
        if missing:
            self._carry_out(missing, finished=len(finished))
        rows = self.state.read([name for name, _ in named])
        return [rows[name] for name, _ in named if name in rows]

    def _takes(self, name: str) -> bool:
        return self.shard is None or self.shard.takes(name)

    def _carry_out(self, runs: Mapping[str, Settings], *, finished: int) -> None:
        """Carry out runs, by hash, that have no row."""
        self.listener.on_begin(len(runs), finished)
        if self._executor is None:
            self._executor = self._open.enter_context(self._factory())
        try:
            dispatch(runs.items(), self._executor, self.state, self.work, self.listener)
        except BaseException as error:
            # Nobody waits for what still runs: end it now, it goes on from its checkpoints when asked for again.
            executor, self._executor = self._executor, None
            executor.__exit__(type(error), error, error.__traceback__)
            raise
        self.listener.on_end()
