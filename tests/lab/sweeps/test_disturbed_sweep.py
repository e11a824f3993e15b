"""A sweep on PostgreSQL whose workers, driver and server are killed while it runs.

Every run is there exactly once, with the results of a sweep that was not disturbed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import pandas as pd
import psutil
import psycopg
import pytest
import yaml
from lab_helpers import Here, tiny_sweep, within
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import Laboratory, LocalExecutor, RateGrid, RunState, Sweep, axis_of

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[2]
# Of the columns of the tables, those that two runs of the same configuration need not share.
TIMES = ["seconds", "seconds_per_epoch"]
SMALL = tiny_sweep(base={"pause": 0.1}, replicates=4, best=4, rates=RateGrid.powers(-3, -1).fixed())
TINY = tiny_sweep(base={"pause": 0.3}, rates=RateGrid.powers(-3, -1).fixed())
SIXTY = Sweep(
    name="sixty",
    base={"model": "normless:wide_resnet(depth=10, width=1)", "epochs": 3, "batch_size": 64, "device": "cpu"},
    axes={"scheme": axis_of("scheme", ["none", "skipinit", "fixup", "batch_norm"])},
    rates=RateGrid.powers(-6, -2).fixed(),
    replicates=3,
    best=2,
)
Plan = list[tuple[int, str]]


def plan_of(runs: int, workers: int, seed: int) -> Plan:
    """At random times so many workers, the driver once and the server once."""
    chance = random.Random(seed)
    hits = ["worker"] * workers + ["driver", "server"]
    chance.shuffle(hits)
    return list(zip(sorted(chance.sample(range(1, runs - 2), len(hits))), hits, strict=True))


def is_local_worker(process: psutil.Process) -> bool:
    """Whether a process is one that `LocalExecutor` started."""
    return any("spawn_main" in word for word in process.cmdline())


def is_ray_worker(process: psutil.Process) -> bool:
    """Whether a process is one in which Ray carries out a task now."""
    title = process.name() + " ".join(process.cmdline())
    return "ray::" in title and "_carry_out" in title


class Disturbed:
    """A sweep that is carried out by `normless sweep run`, with a server and its database."""

    def __init__(
        self, command: list[str], is_worker: Callable[[psutil.Process], bool], server: ThrowawayPostgres
    ) -> None:
        self.command, self.is_worker, self.server = command, is_worker, server
        self.killed: list[str] = []

    def start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths})

    def kill_worker(self, driver: subprocess.Popen[bytes], chance: random.Random) -> bool:
        """Kill one of the worker processes, if there is one."""
        workers = []
        for process in psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else ():
            with suppress(psutil.Error):
                workers += [process] if self.is_worker(process) else []
        if workers:
            chance.choice(sorted(workers, key=lambda one: one.pid)).kill()
        return bool(workers) or driver.poll() is not None

    def carry_out(self, url: str, log: Path, plan: Plan) -> str:
        """Do what the plan says when so many rows are there; return what the drivers said."""
        chance = random.Random(7)
        with log.open("wb") as stream, RunState(url) as state:
            driver = self.start(stream)
            try:
                for number, whom in plan:
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
        return log.read_text()


def tables(sweep: Sweep, folder: Path, **how: Any) -> tuple[pd.DataFrame, ...]:
    """A row per run and a row per epoch, without times; runs that are missing are carried out."""
    with Laboratory(folder, **how) as lab:
        result = lab.run(sweep)
    return tuple(table.drop(columns=TIMES, errors="ignore") for table in (result.runs, result.epochs))


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'normless[cluster]'"
)
BY_TWO: Callable[[], Any] = partial(LocalExecutor, 2)


@pytest.mark.parametrize(
    ("sweep", "plan", "ray", "undisturbed"),
    [
        (SMALL, [(2, "worker"), (5, "server"), (8, "driver")], False, Here),
        (SIXTY, plan_of(60, workers=5, seed=7), False, BY_TWO),
        pytest.param(TINY, [(2, "worker")], True, Here, marks=needs_ray),
        pytest.param(SIXTY, [(20, "worker")], True, BY_TWO, marks=needs_ray),
    ],
)
def test_a_sweep_survives(
    sweep: Sweep,
    plan: Plan,
    ray: bool,
    undisturbed: Callable[[], Any],
    postgres_server: ThrowawayPostgres,
    postgres_url: str,
    tmp_path: Path,
) -> None:
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(sweep.to_dict()))
    command = [sys.executable, "-m", "normless", "sweep", "run", str(file), "--db", postgres_url, "--out", str(out)]
    command += ["--workers", "2", *(["--ray"] if ray else [])]
    disturbed = Disturbed(command, is_ray_worker if ray else is_local_worker, postgres_server)
    said = disturbed.carry_out(postgres_url, tmp_path / "log", plan)
    assert disturbed.killed == [whom for _, whom in plan]
    assert sweep is SMALL or "It goes on in another process." in said
    with psycopg.connect(postgres_url) as connection:
        rows = [name for (name,) in connection.execute("SELECT hash FROM runs").fetchall()]
    assert sorted(rows) == sorted(point.config.hash for point in sweep.points())
    found = tables(sweep, out, url=postgres_url, executor=Here)
    for table, expected in zip(found, tables(sweep, tmp_path / "undisturbed", executor=undisturbed), strict=True):
        pd.testing.assert_frame_equal(table, expected, check_exact=True)
    assert sweep is SMALL or list((out / "work").iterdir()) == []
