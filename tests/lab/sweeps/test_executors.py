"""Processes that execute runs: on this machine, on one card, through Ray and as jobs of a cluster."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_helpers import TinyConfig, die, fail, stay, where, within

from normless_lab.process import available_cores
from normless_lab.sweeps import Laboratory, LocalExecutor
from normless_lab.sweeps._card import CardExecutor
from normless_lab.sweeps._clusters import RayExecutor, SlurmExecutor
from normless_lab.sweeps._processes import WorkerDiedError


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'normless[cluster]'")


def jobs(folder: Path) -> SlurmExecutor:
    """Jobs as a cluster would carry them out, in processes of this machine."""
    return SlurmExecutor(folder / "jobs", {"timeout_min": 5}, cluster="local")


# By name, and what is said when a process died.
EXECUTORS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "local": (lambda folder: LocalExecutor(1), "its process died with exit code -9"),
    "card": (lambda folder: CardExecutor(2), "its process died with exit code -9"),
    "ray": (lambda folder: RayExecutor(), "its process or its machine is gone; "),
    "slurm": (jobs, ""),
}
MARKS: dict[str, list[Any]] = {"card": [pytest.mark.slow], "ray": [pytest.mark.slow, needs("ray")]}
MARKS["slurm"] = [pytest.mark.slow, needs("submitit"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def each(*names: str, slow: str = "") -> pytest.MarkDecorator:
    marks = MARKS | {slow: [*MARKS.get(slow, []), pytest.mark.slow]}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks.get(name, [])) for name in names])


@pytest.fixture(autouse=True)
def _modules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def is_gone(process: int) -> bool:
    # A process that nobody has asked about yet is there as a zombie.
    return not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE


@each("local", "card", "ray")
def test_errors_are_raised_and_a_process_that_dies_is_replaced(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make, said = EXECUTORS[name]
    with make(tmp_path) as executor:
        first = executor.submit(where).result(60)
        assert first[0] != os.getpid()
        with pytest.raises(ArithmeticError, match="no such number"):
            executor.submit(fail).result(60)
        with pytest.raises(WorkerDiedError, match=said):
            executor.submit(die).result(60)
        second = executor.submit(where).result(60)
        assert second[0] != first[0] or name == "ray"
        assert name == "card" or second[1] == (1 if name == "ray" else available_cores())
    assert capfd.readouterr().out == ""


@each("local", "ray", "slurm", slow="slurm")
def test_a_killed_run_goes_on_from_its_last_epoch_in_another_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, said = EXECUTORS[name]
    monkeypatch.setattr("normless_lab.sweeps._dispatch.RESUBMISSIONS", 1)
    fates = ("dies", "dies again", "raises")
    configs = [TinyConfig(seed=seed, fate=fate, epochs=3) for seed, fate in enumerate(fates)]
    with Laboratory(tmp_path / "lab", executor=lambda: make(tmp_path)) as lab:
        once, always, raises = lab.carry_out(configs)
        epochs = (lab.work / always.hash / "epochs.txt").read_text().splitlines()
    assert (once.outcome, (once.result or {})["resumed_after"]) == ("trained", 1)
    assert str(always.error).startswith(f"WorkerDiedError: {said}")
    assert [line.split()[0] for line in epochs] == ["1", "2"]
    assert len({line.split()[1] for line in epochs}) == 2
    assert (raises.outcome, raises.error) == ("failed", "ArithmeticError: no such number as 2")


@pytest.mark.slow
@each("local", "ray")
def test_to_leave_ends_what_still_runs(name: str, tmp_path: Path) -> None:
    record = tmp_path / "process"
    with EXECUTORS[name][0](tmp_path) as executor:
        futures = [executor.submit(stay, str(record)), executor.submit(stay, str(tmp_path / "other"))]
        assert within(120, lambda: record.exists() and record.read_text())
    assert within(30, lambda: is_gone(int(record.read_text())))
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=1)


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    record, script = tmp_path / "process", tmp_path / "driver.py"
    script.write_text(
        "from lab_helpers import stay\nfrom normless_lab.sweeps import LocalExecutor\n"
        "if __name__ == '__main__':\n"
        "    with LocalExecutor(1) as executor:\n"
        f"        executor.submit(stay, {str(record)!r}).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)]) as driver:
        try:
            assert within(120, lambda: record.exists() and record.read_text())
        finally:
            driver.kill()
    assert within(10, lambda: is_gone(int(record.read_text())))


@needs("ray")
def test_nothing_of_ray_listens_beyond_this_machine() -> None:
    listening = set()
    with RayExecutor(workers=2) as cluster:
        cluster.submit(where).result()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                found = process.net_connections("inet")
                listening |= {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def save_when_told(record: str) -> str:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    Path(record).write_text(str(os.getpid()))
    assert within(600, lambda: told)
    return "saved"


@each("slurm")
def test_a_job_is_told_before_its_time_ends_and_leaving_cancels_the_others(name: str, tmp_path: Path) -> None:
    records = [tmp_path / name for name in "ab"]
    with EXECUTORS[name][0](tmp_path) as executor:
        told, other = (executor.submit(save_when_told, str(record)) for record in records)
        assert within(60, lambda: all(record.exists() and record.read_text() for record in records))
        os.kill(int(records[0].read_text()), signal.SIGUSR2)
        assert told.result(60) == "saved"
    # submitit leaves a process that it cancels to itself.
    with pytest.raises(CancelledError):
        other.result(1)
