"""Worker processes: results in order, events in time, and a clear end whatever happens in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from normless.lab.workers import RunFailedError, run_in_workers
from normless.machine import available_cores, threads_of_each


def _square(job: int, emit: Callable[[str], None]) -> tuple[int, int]:
    import torch

    emit(f"first of {job}")
    emit(f"second of {job}")
    return job**2, torch.get_num_threads()


def _raise(job: int, emit: Callable[[str], None]) -> None:
    if job == 1:
        raise ArithmeticError("no such number")
    time.sleep(60)


def _die(job: Path, emit: Callable[[int], None]) -> None:
    emit(os.getpid())
    if job.name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_results_come_in_order_with_their_events_before_them(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, object]] = []
    results = run_in_workers(
        _square,
        [3, 1, 2],
        workers=2,
        on_event=lambda index, event: seen.append((index, event)),
        on_result=lambda index, result: seen.append((index, result)),
    )
    assert results == [(square, threads_of_each(2)) for square in (9, 1, 4)]
    for index, job in enumerate([3, 1, 2]):
        told = [what for at, what in seen if at == index]
        assert told == [f"first of {job}", f"second of {job}", results[index]]
    assert capfd.readouterr().out == ""


def test_a_job_that_raises_is_named_and_ends_the_others() -> None:
    with pytest.raises(RunFailedError, match="The run 1 failed: ArithmeticError: no such number"):
        run_in_workers(_raise, [0, 1], workers=2, on_event=_ignore, on_result=_ignore)


def test_a_process_that_dies_is_named_and_ends_the_others() -> None:
    processes: list[int] = []
    with pytest.raises(RunFailedError, match="The run dies failed: its process died with exit code -9"):
        run_in_workers(
            _die,
            [Path("sleeps"), Path("dies")],
            workers=2,
            on_event=lambda _, process: processes.append(process),
            on_result=_ignore,
        )
    assert processes
    assert all(_gone(process) for process in processes)


def test_an_interruption_ends_the_workers() -> None:
    processes: list[int] = []

    def interrupt(_: int, process: int) -> None:
        processes.append(process)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_workers(_die, [Path("sleeps")], workers=1, on_event=interrupt, on_result=_ignore)
    assert len(processes) == 1
    assert _gone(processes[0])


def test_there_is_at_least_one_core() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert threads_of_each(1) == available_cores()
    assert threads_of_each(available_cores() + 1) == 1


def _ignore(index: int, event: object) -> None:
    """Takes no notice."""
