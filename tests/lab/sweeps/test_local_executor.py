"""Worker processes on this machine: who does what, and what becomes of it when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from lab_helpers import TinyConfig

from normless_lab.process import available_cores
from normless_lab.sweeps import Laboratory, LocalExecutor, WorkerDiedError
from normless_lab.sweeps.executors.local import NoWorkerError, WarmProcess


def _process(pause: float = 0.0) -> tuple[int, int]:
    import torch

    time.sleep(pause)
    return os.getpid(), torch.get_num_threads()


def _raise() -> None:
    raise ArithmeticError("no such number")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep(record: str) -> None:
    Path(record).write_text(str(os.getpid()))
    time.sleep(600)


def _is_gone(process: int) -> bool:
    try:
        # A process that nobody has asked about yet is there as a zombie.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _within(seconds: float, condition: object) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def two() -> Iterator[LocalExecutor]:
    with LocalExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("threads", [None, 3])
def test_a_process_has_its_share_of_the_cores_or_what_it_is_given(threads: int | None) -> None:
    with LocalExecutor(1, threads=threads) as executor:
        assert executor.submit(_process).result()[1] == (threads or available_cores())


def test_a_process_that_dies_is_told_and_replaced(two: LocalExecutor) -> None:
    with pytest.raises(WorkerDiedError, match="its process died with exit code -9"):
        two.submit(_die).result()
    processes = [two.submit(_process, 0.2, group=number).result()[0] for number in range(2)]
    for process in processes:
        if not _is_gone(process):
            os.kill(process, signal.SIGKILL)
    # They died with nothing to do: whoever needs them next notices nothing.
    again = {future.result()[0] for future in [two.submit(_process, 0.2, group=number) for number in range(2)]}
    assert not again & set(processes)


@pytest.mark.slow
def test_a_task_whose_process_never_starts_ends_alone(two: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = WarmProcess.schedule

    def dying(process: WarmProcess, function: Callable[..., object], args: tuple[object, ...]) -> Future[object]:
        if function is not _raise:
            return schedule(process, function, args)
        broken: Future[object] = Future()
        broken.set_exception(BrokenProcessPool("as a process that is killed while it starts"))
        return broken

    monkeypatch.setattr(WarmProcess, "schedule", dying)
    with LocalExecutor(1) as one:
        with pytest.raises(NoWorkerError, match="no worker process could start"):
            one.submit(_raise).result()
        assert one.submit(_process).result()[0] != os.getpid()
        with pytest.raises(WorkerDiedError, match="its process ended 3 times before it took the run"):
            one.submit(_raise).result()


@pytest.mark.slow
def test_to_leave_ends_what_still_runs(tmp_path: Path) -> None:
    record = tmp_path / "process"
    with LocalExecutor(1) as executor:
        running = executor.submit(_sleep, str(record))
        waiting = executor.submit(_process)
        assert _within(60, lambda: record.exists() and record.read_text())
    assert _within(10, lambda: _is_gone(int(record.read_text())))
    for future in (running, waiting):
        with pytest.raises(CancelledError):
            future.result(timeout=1)


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    record = tmp_path / "process"
    script = tmp_path / "driver.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_local_executor import LocalExecutor, _sleep\n"
        "if __name__ == '__main__':\n"
        "    with LocalExecutor(1) as executor:\n"
        f"        executor.submit(_sleep, {str(record)!r}).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)]) as driver:
        try:
            assert _within(120, lambda: record.exists() and record.read_text())
        finally:
            driver.kill()
    assert _within(10, lambda: _is_gone(int(record.read_text())))


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


def test_a_killed_run_goes_on_from_its_last_epoch_in_another_process(tmp_path: Path) -> None:
    configs = [TinyConfig(seed=0, fate="dies", epochs=3), TinyConfig(seed=1, fate="dies again", epochs=9)]
    with Laboratory(tmp_path, workers=1) as lab:
        once, always = lab.carry_out(configs)
        assert (once.outcome, always.outcome) == ("trained", "failed")
        assert once.result is not None
        assert once.result["resumed_after"] == 1
        assert always.error is not None
        assert always.error.startswith("WorkerDiedError: its process died with exit code -9;")
        epochs = (lab.work / always.hash / "epochs.txt").read_text().splitlines()
    assert [line.split()[0] for line in epochs] == ["1", "2", "3", "4"]
    assert len({line.split()[1] for line in epochs}) == 4
