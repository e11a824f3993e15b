"""Runs as jobs of a Slurm cluster, submitted by submitit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from normless.extras import import_extra
from normless_lab.sweeps.executors.executor import Result, WorkerDiedError, settle
from normless_lab.sweeps.executors.local import called
from normless_lab.sweeps.executors.processes import Ended, Order

MOST_JOBS = 100
# Seconds between two looks at the files in which jobs leave their results; submitit asks Slurm itself less often.
SECONDS_BETWEEN_LOOKS = 1.0


class SlurmExecutor:
    """Tasks as jobs of a Slurm cluster; a context manager that cancels the jobs when it ends.

    Before the time of a job ends, or if it is preempted, its run saves itself, and may be submitted again.

    Args:
        folder: folder of the jobs' logs and results, which all machines of the cluster share.
        parameters: what the jobs need, by the names of submitit's `AutoExecutor`: `timeout_min`, `mem_gb`,
            `cpus_per_task`, `gpus_per_node`, `slurm_partition`, `slurm_account` and others of sbatch with `slurm_`.
        workers: largest number of jobs at once; `MOST_JOBS` if None.
        cluster: "slurm", or "local" for processes on this machine.

    Attributes:
        window: the largest number of jobs at once.

    Raises:
        ValueError: the number of workers is below 1, or a parameter is unknown.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any] | None = None,
        *,
        workers: int | None = None,
        cluster: str = "slurm",
    ) -> None:
        self.window = MOST_JOBS if workers is None else workers
        if self.window < 1:
            raise ValueError(f"Expected 1 or more workers, got {workers}.")
        submitit = import_extra("cluster", "A job of Slurm", "submitit")
        self._executor = submitit.AutoExecutor(folder.absolute(), cluster=cluster)
        try:
            self._executor.update_parameters(**{"name": "normless"} | dict(parameters or {}))
        except (NameError, AssertionError) as error:
            raise ValueError(f"Expected parameters of Slurm jobs as submitit names them: {error}") from error
        self._open: dict[Future[Any], Any] = {}
        self._is_left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="normless slurm executor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the jobs that have not ended."""
        self._is_left.set()
        self._thread.join()
        for future, job in self._open.items():
            job.cancel(check=False)
            future.cancel()
        self._open.clear()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` in a job; see `Executor`. Groups are not kept together."""
        future: Future[Result] = Future()
        self._open[future] = self._executor.submit(carry_out, Order(0, function, args))
        return future

    def _watch(self) -> None:
        """Set the futures of jobs that end, until the context ends."""
        while not self._is_left.wait(SECONDS_BETWEEN_LOOKS):
            for future, job in list(self._open.items()):
                if job.done():
                    del self._open[future]
                    self._finish(future, job)

    def _finish(self, future: Future[Any], job: Any) -> None:
        error = job.exception()
        if error is None:
            ended: Ended = job.result()
            settle(future, ended.result, ended.error)
        else:
            words = f"its job {job.job_id} ended as {job.state} without a result; see {job.paths.stderr}."
            settle(future, error=WorkerDiedError(words))


def carry_out(order: Order) -> Ended:
    """Return the outcome of an order in a job, in which a run saves itself and ends when Slurm announces the end."""
    # The signal that submitit lets Slurm send; runs save themselves on SIGTERM.
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return called(order)
