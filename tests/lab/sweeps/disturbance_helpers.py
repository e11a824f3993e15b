"""A sweep whose worker processes, driver and database server are killed at random while it runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pandas as pd
import psutil
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import Laboratory, RunState, Sweep

HERE = Path(__file__).parent
# Of the columns of the tables, those that two runs of the same configuration need not share.
TIMES = ["seconds", "seconds_per_epoch"]


@dataclass
class Disturbed:
    """A sweep that is carried out by `normless sweep run`, and what was done to it."""

    file: Path
    url: str
    out: Path
    words: Sequence[str]
    is_worker: Callable[[psutil.Process], bool]
    killed: list[str] = field(default_factory=list)

    def start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the driver."""
        command = [sys.executable, "-m", "normless", "sweep", "run", str(self.file), "--db", self.url]
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [*command, "--out", str(self.out), *self.words],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def kill_worker(self, driver: subprocess.Popen[bytes], chance: random.Random) -> None:
        """Kill one of the worker processes as soon as there is one."""
        while driver.poll() is None:
            try:
                workers = [one for one in psutil.Process(driver.pid).children(recursive=True) if self.is_worker(one)]
                if workers:
                    chance.choice(sorted(workers, key=lambda one: one.pid)).kill()
                    self.killed.append("worker")
                    return
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.05)


def is_local_worker(process: psutil.Process) -> bool:
    """Whether a process is one that `LocalExecutor` started."""
    try:
        return any("spawn_main" in word for word in process.cmdline())
    except psutil.Error:
        return False


def carry_out_disturbed(
    disturbed: Disturbed, server: ThrowawayPostgres, plan: Sequence[tuple[int, str]], *, seed: int, limit: float
) -> str:
    """Carry out a sweep and do what the plan says when so many rows are there; returns what the drivers said.

    Args:
        disturbed: the sweep.
        server: with its database.
        plan: in increasing order, the number of finished runs and whom it hits: worker, driver or server.
        seed: of the choice among workers.
        limit: seconds after which it is given up.
    """
    chance = random.Random(seed)
    waiting = list(plan)
    deadline = time.monotonic() + limit
    log = disturbed.out.with_suffix(".log")
    with log.open("wb") as stream, RunState(disturbed.url) as state:
        driver = disturbed.start(stream)
        try:
            while driver.poll() is None or waiting:
                assert time.monotonic() < deadline, f"gave up with {waiting} left:\n{log.read_text()[-4000:]}"
                finished = len(state.hashes())
                while waiting and finished >= waiting[0][0]:
                    whom = waiting.pop(0)[1]
                    if whom == "worker":
                        disturbed.kill_worker(driver, chance)
                    elif whom == "driver":
                        driver.kill()
                        driver.wait()
                        disturbed.killed.append("driver")
                        driver = disturbed.start(stream)
                    else:
                        server.stop("immediate")
                        time.sleep(1.0)
                        server.start()
                        disturbed.killed.append("server")
                assert driver.poll() is None or not waiting, f"it ended early:\n{log.read_text()[-4000:]}"
                time.sleep(0.05)
        finally:
            driver.kill()
            driver.wait()
    said = log.read_text()
    assert driver.returncode == 0, said[-4000:]
    return said


def plan_of(runs: int, workers: int, seed: int) -> list[tuple[int, str]]:
    """At random times so many workers, the driver once and the server once."""
    chance = random.Random(seed)
    hits = ["worker"] * workers + ["driver", "server"]
    chance.shuffle(hits)
    return list(zip(sorted(chance.sample(range(1, runs - 2), len(hits))), hits, strict=True))


def tables(sweep: Sweep, folder: Path, url: str | None = None, **changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row per run and a row per epoch, without times; runs that are missing are carried out."""
    with Laboratory(folder, url=url, **changes) as lab:
        result = lab.run(sweep)
    return (
        result.runs.drop(columns=TIMES, errors="ignore"),
        result.epochs.drop(columns=TIMES, errors="ignore"),
    )


def is_ray_worker(process: psutil.Process) -> bool:
    """Whether a process is one in which Ray carries out a task now."""
    try:
        title = process.name() + " ".join(process.cmdline())
        return "ray::" in title and "_carry_out" in title
    except psutil.Error:
        return False
