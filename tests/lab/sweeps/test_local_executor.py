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

from normless_lab.process import available_cores, threads_of_each
from normless_lab.sweeps import Laboratory, LocalExecutor, WorkerDiedError
from normless_lab.sweeps.executors.local import NoWorkerError, WarmProcess


def _process(pause: float = 0.0) -> tuple[int, int]:
    import torch

    time.sleep(pause)
    return os.getpid(), torch.get_num_threads()


def _process_beside(mine: str, other: str) -> tuple[int, int]:
    """`_process` once a task that has the names the other way round is carried out as well."""
    Path(mine).touch()
    assert _within(60, Path(other).exists)
    return _process()


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


def test_tasks_of_a_group_share_a_process(two: LocalExecutor, tmp_path: Path) -> None:
    # Each task waits for its counterpart, so that neither process runs out of its own group while the other has some.
    futures: dict[str, list[Future[tuple[int, int]]]] = {"a": [], "b": []}
    for number in range(4):
        for group, other in (("a", "b"), ("b", "a")):
            names = f"{tmp_path}/{group}{number}", f"{tmp_path}/{other}{number}"
            futures[group].append(two.submit(_process_beside, *names, group=group))
    found = {group: {future.result() for future in held} for group, held in futures.items()}
    assert all(threads == threads_of_each(2) for held in found.values() for _, threads in held)
    assert len(found["a"]) == len(found["b"]) == 1
    assert found["a"] != found["b"]
    assert os.getpid() not in {process for held in found.values() for process, _ in held}


def test_a_process_without_a_group_of_its_own_helps_with_another(two: LocalExecutor, tmp_path: Path) -> None:
    names = f"{tmp_path}/first", f"{tmp_path}/second"
    futures = [two.submit(_process_beside, *order, group="one") for order in (names, names[::-1])]
    assert len({future.result()[0] for future in futures}) == 2


@pytest.mark.parametrize("threads", [None, 3])
def test_a_process_has_its_share_of_the_cores_or_what_it_is_given(threads: int | None) -> None:
    with LocalExecutor(1, threads=threads) as executor:
        assert executor.submit(_process).result()[1] == (threads or available_cores())


def test_what_a_task_raises_is_raised_and_the_process_goes_on(two: LocalExecutor) -> None:
    before = {two.submit(_process, 0.3, group=number).result()[0] for number in range(2)}
    with pytest.raises(ArithmeticError, match="no such number"):
        two.submit(_raise).result()
    after = {future.result()[0] for future in [two.submit(_process, 0.3, group=number) for number in range(2)]}
    assert before <= after


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


def test_what_ends_a_process_ends_its_run_alone(tmp_path: Path) -> None:
    fates = ["well", "exits", "interrupts", "well"]
    configs = [TinyConfig(seed=seed, fate=fate) for seed, fate in enumerate(fates)]
    with Laboratory(tmp_path, executor=lambda: LocalExecutor(2)) as lab:
        rows = lab.carry_out(configs)
    assert [row.outcome for row in rows] == ["trained", "failed", "failed", "trained"]
    assert [row.error for row in rows[1:3]] == ["SystemExit: 1", "KeyboardInterrupt, raised by the run itself"]


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


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more workers, got 0"):
        LocalExecutor(0)


def test_there_is_at_least_one_core() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert threads_of_each(1) == available_cores()
    assert threads_of_each(available_cores() + 1) == 1
