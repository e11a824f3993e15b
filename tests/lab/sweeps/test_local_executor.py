"""Worker processes on this machine: who does what, and what becomes of it when one of them is killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from lab_helpers import TinyConfig, die, fail, sleep, where, within

from normless_lab.process import available_cores
from normless_lab.sweeps import Laboratory, LocalExecutor, WorkerDiedError
from normless_lab.sweeps.executors.local import called, received, report
from normless_lab.sweeps.executors.processes import NoWorkerError, ProcessExecutor, WorkerProcess


def _is_gone(process: int) -> bool:
    try:
        # A process that nobody has asked about yet is there as a zombie.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def two() -> Iterator[LocalExecutor]:
    with LocalExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("threads", [None, 3])
def test_a_process_has_its_share_of_the_cores_or_what_it_is_given(threads: int | None) -> None:
    (serve,) = [process._target for process in LocalExecutor(1, threads=threads)._processes]
    assert isinstance(serve, partial)
    assert serve.keywords == {"threads": threads or available_cores(), "background": False}


@pytest.mark.skipif(sys.platform != "linux", reason="sessions divide the time of the processor on Linux")
def test_background_processes_give_way_to_all_others() -> None:
    """Niceness counts within a session only, so that each has a session of its own, of the lowest weight."""
    with LocalExecutor(1, background=True) as executor:
        process = executor.submit(os.getpid).result()
        assert os.getpriority(os.PRIO_PROCESS, process) == 19
        assert os.getsid(process) == process
        group = Path(f"/proc/{process}/autogroup")
        if group.exists():
            assert group.read_text().split()[-1] == "19"


def test_a_process_that_dies_is_told_and_replaced(two: LocalExecutor) -> None:
    with pytest.raises(WorkerDiedError, match="its process died with exit code -9"):
        two.submit(die).result()
    assert two.submit(where).result()[1] == max(1, available_cores() // 2)
    processes = [two.submit(where, 0.2, group=number).result()[0] for number in range(2)]
    for process in processes:
        if not _is_gone(process):
            os.kill(process, signal.SIGKILL)
    # They died with nothing to do: whoever needs them next notices nothing.
    again = {future.result()[0] for future in [two.submit(where, 0.2, group=number) for number in range(2)]}
    assert not again & set(processes)


def _serve_once(connection: Connection, record: Path, exit_code: int) -> None:
    """Carry out a single order; further processes end as they start."""
    if record.exists():
        os._exit(exit_code)
    record.touch()
    report(connection, called(received(connection)))


def test_a_task_whose_process_never_starts_ends_alone(tmp_path: Path) -> None:
    with ProcessExecutor([partial(_serve_once, record=tmp_path / "record", exit_code=3)]) as executor:
        with pytest.raises(ArithmeticError, match="no such number"):
            executor.submit(fail).result(60)
        with pytest.raises(WorkerDiedError, match="3 times before it took the run"):
            executor.submit(fail).result(60)
    with (
        ProcessExecutor([partial(_serve_once, record=tmp_path, exit_code=3)]) as executor,
        pytest.raises(NoWorkerError, match=r'no worker process could start.* if __name__ == "__main__"'),
    ):
        executor.submit(fail).result(60)


class TwoArgumentsError(Exception):
    """An error that cannot be restored, since pickling hands only its message to the constructor."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def _raise_two() -> None:
    raise TwoArgumentsError("no such ", "number")


def test_what_cannot_be_pickled_is_told(tmp_path: Path) -> None:
    with ProcessExecutor([partial(_serve_once, record=tmp_path / "record", exit_code=3)]) as executor:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            executor.submit(lambda: None).result(60)
        with pytest.raises(RuntimeError, match="TwoArgumentsError: no such number"):
            executor.submit(_raise_two).result(60)


def test_a_process_stays_with_its_group_and_away_from_those_of_others() -> None:
    executor = ProcessExecutor([print, print])
    first, second = executor._processes
    for number, group in enumerate("aabba"):
        executor.submit(divmod, number, group=group)

    def next_of(process: WorkerProcess) -> int:
        task = executor._next_for(process)
        assert task is not None
        process.group, process.tasks = task.group, {0: task}
        return int(task.order.args[0])

    assert [next_of(process) for process in (first, second, first, first, first)] == [0, 2, 1, 4, 3]
    assert executor._next_for(second) is None


@pytest.mark.slow
def test_to_leave_ends_what_still_runs(tmp_path: Path) -> None:
    record = tmp_path / "process"
    with LocalExecutor(1) as executor:
        running = executor.submit(sleep, str(record))
        waiting = executor.submit(where)
        assert within(60, lambda: record.exists() and record.read_text())
    assert within(10, lambda: _is_gone(int(record.read_text())))
    for future in (running, waiting):
        with pytest.raises(CancelledError):
            future.result(timeout=1)


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    record = tmp_path / "process"
    script = tmp_path / "driver.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from lab_helpers import sleep\nfrom normless_lab.sweeps import LocalExecutor\n"
        "if __name__ == '__main__':\n"
        "    with LocalExecutor(1) as executor:\n"
        f"        executor.submit(sleep, {str(record)!r}).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)]) as driver:
        try:
            assert within(120, lambda: record.exists() and record.read_text())
        finally:
            driver.kill()
    assert within(10, lambda: _is_gone(int(record.read_text())))


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "from operator import neg\n"
        "from normless_lab.sweeps.executors.local import LocalExecutor\n"
        "with LocalExecutor(1) as executor:\n"
        "    executor.submit(neg, 1).result()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NoWorkerError: no worker process could start; a script that starts them needs" in done.stderr


def test_a_killed_run_goes_on_from_its_last_epoch_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normless_lab.sweeps.dispatch.RESUBMISSIONS", 1)
    configs = [TinyConfig(seed=0, fate="dies", epochs=3), TinyConfig(seed=1, fate="dies again", epochs=9)]
    with Laboratory(tmp_path, workers=1) as lab:
        once, always = lab.carry_out(configs)
        assert (once.outcome, always.outcome) == ("trained", "failed")
        assert once.result is not None
        assert once.result["resumed_after"] == 1
        assert always.error is not None
        assert always.error.startswith("WorkerDiedError: its process died with exit code -9;")
        epochs = (lab.work / always.hash / "epochs.txt").read_text().splitlines()
    assert [line.split()[0] for line in epochs] == ["1", "2"]
    assert len({line.split()[1] for line in epochs}) == 2
