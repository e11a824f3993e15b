"""Runs as tasks of a Ray cluster or as jobs of Slurm."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self

from normless.errors import NormlessError
from normless.extras import import_extra
from normless_lab.process import available_cores
from normless_lab.sweeps._processes import Ended, Order, Result, WorkerDiedError, called, settle

# Tasks that wait in the cluster: enough to keep it busy with short tasks, few enough not to burden it.
SMALLEST_WINDOW = 1000
WINDOW_PER_SLOT = 2
# The smallest size that Ray accepts; rows do not need the object store.
OBJECT_STORE_BYTES = 80 * 2**20
# Ray reads these when it is imported, and hands them to the processes it starts. Usage is not reported; messages
# about dead workers on standard output, which belongs to the command, are skipped; a cluster of this machine stays on
# loopback, as it does by default on macOS; and authentication is the default, without a warning.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*"}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}


class ClusterError(NormlessError):
    """Ray itself failed, not a run; the message contains its report."""


class RayExecutor:
    """Tasks on a Ray cluster, each with one core, one thread and its share of a GPU; a context manager.

    Ray reuses worker processes, so the runs of a process share data and compiled code. If the process or machine of a
    task dies, the task is not repeated. All machines of a cluster need normless and the same folders.

    Args:
        address: address of the cluster, as HOST:PORT, or auto for the cluster of this machine; if None, the cluster
            to which this process is connected, or else a new one on this machine's loopback, which ends with the
            context.
        workers: largest number of simultaneous tasks; if None, as many as there is room for.
        gpus_per_run: GPUs of each task; with 0.25, four tasks share a GPU.

    Attributes:
        window: the number of tasks that may wait in the cluster.

    Raises:
        ValueError: the number of workers is below 1, or the GPUs are negative.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None, gpus_per_run: float = 0.0) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"Expected 1 or more workers, got {workers}.")
        if gpus_per_run < 0:
            raise ValueError(f"Expected 0 or more GPUs per run, got {gpus_per_run}.")
        self._address = address
        self._workers = workers
        self._gpus = gpus_per_run
        self._ray: Any = None
        self._owns = False
        self._task: Any = None
        self.window = SMALLEST_WINDOW
        # The tasks that have not ended, each with Ray's reference.
        self._open: dict[Future[Any], Any] = {}

    def __enter__(self) -> Self:
        """Connect to the cluster, or start it."""
        self._ray = ray = _ray(local=self._address is None)
        self._owns = not ray.is_initialized()
        if self._owns:
            self._connect(ray)
        self._task = ray.remote(num_cpus=1, num_gpus=self._gpus, max_retries=0)(_run_task)
        self.window = max(SMALLEST_WINDOW, WINDOW_PER_SLOT * int(ray.cluster_resources().get("CPU", 1)))
        if self._workers is not None and not (self._owns and self._address is None):
            # In a shared cluster, the limit applies to the submitted tasks.
            self.window = self._workers
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster and cancel the tasks of this process."""
        open_, self._open = self._open, {}
        if self._owns:
            self._ray.shutdown()
        for future, reference in open_.items():
            if not self._owns:
                self._ray.cancel(reference, force=True)
            future.cancel()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` where there is room; see `Executor`. Groups are not kept together."""
        future: Future[Result] = Future()
        self._open[future] = self._task.remote(tuple(sys.path), pickle.dumps((function, args)))
        self._open[future].future().add_done_callback(partial(self._finish, future))
        return future

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {}
        if self._address is None:
            options = {
                "num_cpus": self._workers or available_cores(),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_ip_address": "127.0.0.1",
            }
        ray.init(address=self._address or "local", log_to_driver=False, configure_logging=False, **options)

    def _finish(self, future: Future[Any], outcome: Future[Any]) -> None:
        """Set the future of a task that ended; called in a thread of Ray."""
        self._open.pop(future, None)
        error = outcome.exception()
        if error is None:
            settle(future, outcome.result())
        else:
            settle(future, error=_in_words(error))


def _ray(*, local: bool) -> Any:
    """Import Ray without its messages; `local` if it will start a cluster on this machine."""
    for name, value in (QUIET | ON_LOOPBACK if local else QUIET).items():
        os.environ.setdefault(name, value)
    return import_extra("cluster", "A Ray cluster", "ray")


def _run_task(paths: tuple[str, ...], task: bytes) -> Any:
    """Call a function on its arguments in a worker process, with one thread."""
    sys.path += [path for path in paths if path not in sys.path]
    import torch

    torch.set_num_threads(1)
    function, args = pickle.loads(task)
    return function(*args)


def _in_words(error: BaseException) -> BaseException:
    """Return an error of Ray in words; an exception of the task itself is unchanged."""
    from ray import exceptions

    if isinstance(error, exceptions.RayTaskError):
        return error.cause if isinstance(error.cause, Exception) else error
    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
    )
    text = " ".join(str(error).split()).rstrip(".")
    explained = (
        WorkerDiedError(f"its process or its machine is gone; Ray says: {text}.")
        if isinstance(error, lost)
        else ClusterError(f"Ray cannot execute runs: {type(error).__name__}: {text}.")
    )
    explained.__cause__ = error
    return explained


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
        self._open[future] = self._executor.submit(run_job, Order(0, function, args))
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


def run_job(order: Order) -> Ended:
    """Return the outcome of an order in a job, in which a run saves itself and ends when Slurm announces the end."""
    # The signal that submitit lets Slurm send; runs save themselves on SIGTERM.
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return called(order)
