"""A Ray cluster of this machine: who carries out what, and what becomes of it when a process is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest
import yaml
from lab_helpers import TinyConfig, die, sleep, tiny_sweep, where, within

from normless.cli import main
from normless_lab.sweeps import Laboratory, RateGrid, RayExecutor, WorkerDiedError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'normless[cluster]'"
)


@pytest.fixture(scope="module")
def two() -> Iterator[RayExecutor]:
    with RayExecutor(workers=2) as executor:
        yield executor


@pytest.mark.slow
def test_tasks_run_in_processes_of_one_thread_that_stay(two: RayExecutor) -> None:
    found = {future.result() for future in [two.submit(where) for _ in range(50)]}
    assert all(threads == 1 for _, threads in found)
    processes = {process for process, _ in found}
    assert os.getpid() not in processes
    assert len(processes) <= 4
    assert two.window >= 1000


@pytest.mark.slow
def test_a_killed_process_is_told_in_words_and_silently_replaced(
    two: RayExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerDiedError, match="its process or its machine is gone; Ray says: "):
        two.submit(die).result()
    assert two.submit(where).result()[1] == 1
    time.sleep(1.0)
    assert capfd.readouterr().out == ""


def test_nothing_listens_beyond_this_machine(two: RayExecutor) -> None:
    two.submit(where).result()
    listening = [
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in _connections(process)
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def _connections(process: psutil.Process) -> list[psutil._common.pconn]:
    try:
        return process.net_connections("inet")
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_epoch_and_others_do_not_notice(two: RayExecutor, tmp_path: Path) -> None:
    sweep = tiny_sweep(rates=RateGrid.powers(-3, -1).fixed())
    configs = [TinyConfig(seed=0, fate="dies", epochs=3), TinyConfig(seed=1, fate="dies again", epochs=9)]
    with Laboratory(tmp_path, executor=lambda: RayExecutor()) as lab:
        once, always = lab.carry_out(configs)
        result = lab.run(sweep)
    assert (once.outcome, always.outcome) == ("trained", "failed")
    assert once.result is not None
    assert once.result["resumed_after"] == 1
    assert always.error is not None
    assert always.error.startswith("WorkerDiedError: its process or its machine is gone;")
    assert list(result.runs["outcome"]) == ["trained"] * 12
    # It used the cluster that was there, and left it.
    assert two.submit(where).result()[1] == 1


def test_the_command_carries_out_a_sweep_by_ray(
    two: RayExecutor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(tiny_sweep(rates=RateGrid.powers(-3, -1).fixed()).to_dict()))
    assert main(["sweep", "run", str(file), "--out", str(tmp_path / "out"), "--ray", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["runs"], printed["missing"], printed["outcomes"]["trained"]) == (12, 0, 12)


@pytest.mark.slow
def test_to_leave_ends_what_still_runs(two: RayExecutor, tmp_path: Path) -> None:
    record = tmp_path / "process"
    with RayExecutor() as executor:
        running = executor.submit(sleep, str(record))
        assert within(120, lambda: record.exists() and record.read_text())
    assert within(30, lambda: not psutil.pid_exists(int(record.read_text())))
    with pytest.raises(CancelledError):
        running.result(timeout=1)
