"""A sweep on PostgreSQL whose workers, driver and server are killed while it runs.

Every run is there exactly once, with the results of a sweep that was not disturbed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd
import psutil
import psycopg
import pytest
import yaml
from lab_helpers import Here, tiny_sweep, within
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import Laboratory, RateGrid, RunState

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[2]
# Of the columns of the tables, those that two runs of the same configuration need not share.
TIMES = ["seconds", "seconds_per_epoch"]
SMALL = tiny_sweep(base={"pause": 0.1}, replicates=4, best=4, rates=RateGrid.powers(-3, -1).fixed())
PLAN = [(2, "worker"), (5, "server"), (8, "driver")]


def is_local_worker(process: psutil.Process) -> bool:
    """Whether a process is one that `LocalExecutor` started."""
    return any("spawn_main" in word for word in process.cmdline())


class Disturbed:
    """A sweep that is carried out by `normless sweep run`, with a server and its database."""

    def __init__(self, command: list[str], server: ThrowawayPostgres) -> None:
        self.command, self.server = command, server
        self.killed: list[str] = []

    def start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths})

    def kill_worker(self, driver: subprocess.Popen[bytes], chance: random.Random) -> bool:
        """Kill one of the worker processes, if there is one."""
        workers = []
        for process in psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else ():
            with suppress(psutil.Error):
                workers += [process] if is_local_worker(process) else []
        if workers:
            chance.choice(sorted(workers, key=lambda one: one.pid)).kill()
        return bool(workers) or driver.poll() is not None

    def carry_out(self, url: str, log: Path) -> None:
        """Do what the plan says when so many rows are there."""
        chance = random.Random(7)
        with log.open("wb") as stream, RunState(url) as state:
            driver = self.start(stream)
            try:
                for number, whom in PLAN:
                    assert within(3000, lambda: len(state.hashes()) >= number or driver.poll() is not None)  # noqa: B023
                    assert driver.poll() is None, f"it ended early:\n{log.read_text()[-4000:]}"
                    if whom == "worker":
                        assert within(100, lambda: self.kill_worker(driver, chance))  # noqa: B023
                    elif whom == "driver":
                        driver.kill()
                        driver.wait()
                        driver = self.start(stream)
                    else:
                        self.server.stop("immediate")
                        self.server.start()
                    self.killed.append(whom)
                driver.wait(3000)
            finally:
                driver.kill()
                driver.wait()
        assert driver.returncode == 0, log.read_text()[-4000:]


def tables(folder: Path, **how: Any) -> tuple[pd.DataFrame, ...]:
    """A row per run and a row per epoch, without times; runs that are missing are carried out."""
    with Laboratory(folder, executor=Here, **how) as lab:
        result = lab.run(SMALL)
    return tuple(table.drop(columns=TIMES, errors="ignore") for table in (result.runs, result.epochs))


def test_a_sweep_survives(postgres_server: ThrowawayPostgres, postgres_url: str, tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL.to_dict()))
    command = [sys.executable, "-m", "normless", "sweep", "run", str(file), "--db", postgres_url, "--out", str(out)]
    disturbed = Disturbed([*command, "--workers", "2"], postgres_server)
    disturbed.carry_out(postgres_url, tmp_path / "log")
    assert disturbed.killed == [whom for _, whom in PLAN]
    with psycopg.connect(postgres_url) as connection:
        rows = [name for (name,) in connection.execute("SELECT hash FROM runs").fetchall()]
    assert sorted(rows) == sorted(point.config.hash for point in SMALL.points())
    found = tables(out, url=postgres_url)
    for table, expected in zip(found, tables(tmp_path / "undisturbed"), strict=True):
        pd.testing.assert_frame_equal(table, expected, check_exact=True)
