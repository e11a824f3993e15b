"""Commands whose processes are killed, run out of memory or space, or see the clock jump, end as undisturbed ones.

Part of `make faults`; `NORMLESS_FAULTS=10` is every tenth of the kills.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import yaml

KILLS = max(1, 30 // int(os.environ.get("NORMLESS_FAULTS", "1")))
MODEL = "normless:wide_resnet(depth=10, width=1)"
BASE = {"model": MODEL, "data": "digits(train=512, test=64)", "epochs": 3, "batch_size": 32, "device": "cpu"}
ARTEFACT = "fixup/table-1"
# Seconds in which a command has begun its work, and in which it is killed at the latest.
BEGUN, LATEST = 4.0, 14.0
CLOCK = """
import random, time
real = time.time
time.time = lambda: real() + random.choice((-1e8, -3600, 0, 3600, 1e8))
time.time_ns = lambda: int(time.time() * 1e9)
"""


def started(*words: str, **options: Any) -> subprocess.Popen[str]:
    """A command in a session of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "normless", *words],
        env=environment,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def ended(*words: str, **options: Any) -> tuple[int, str]:
    """The exit code of a command and what it said; never a traceback."""
    process = started(*words, **options)
    said = "".join(process.communicate(timeout=900))
    assert "Traceback" not in said, said
    assert "unexpected" not in said, said
    return process.returncode, said


def killed(seconds: float, *words: str) -> None:
    """Start a command, and kill it with its workers unless it ends before."""
    process = started(*words)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def sweep_in(folder: Path, **settings: Any) -> str:
    file = folder / "sweep.yaml"
    stated = {"name": "s", "base": BASE, "axes": {"scheme": ["skipinit", "batch_norm"]}, "rates": [0.05, 0.1]}
    file.write_text(yaml.safe_dump(stated | {"replicates": 2, "best": 1} | settings))
    return str(file)


def rows_of(file: str, out: Path) -> list[dict[str, Any]]:
    """What runs measured, by scheme, rate and seed."""
    table = out / "rows.parquet"
    assert ended("sweep", "export", file, str(table), "--out", str(out))[0] == 0
    columns = ["scheme", "rate", "seed", "outcome", "test_accuracy", "test_loss"]
    rows: list[dict[str, Any]] = pd.read_parquet(table)[columns].sort_values(columns[:3]).to_dict("records")
    return rows


def test_reproduce_is_killed(tmp_path: Path) -> None:
    chance, results = random.Random(0), []
    for name in ("killed", "whole"):
        words = ("reproduce", ARTEFACT, "--budget", "smoke", "--workers", "2", "--out", str(tmp_path / name))
        for _ in range(KILLS if name == "killed" else 0):
            killed(BEGUN + chance.random() * (LATEST - BEGUN), *words)
        ended(*words)
        (result,) = (tmp_path / name / "artefacts" / ARTEFACT).rglob("result.json")
        values = json.loads(result.read_text())
        measured = pd.read_csv(result.with_name("measured.csv"))
        timed = [column for column in measured if "seconds" in column]
        results.append((values["verdict"], values["runs"], measured.drop(columns=timed).to_csv()))
    assert results[0] == results[1]


def test_workers_of_a_sweep_are_killed(tmp_path: Path) -> None:
    file, chance = sweep_in(tmp_path), random.Random(0)
    run = ("sweep", "run", file, "--workers", "2", "--out")
    assert ended(*run, str(tmp_path / "whole"))[0] == 0
    driver, kills = started(*run, str(tmp_path / "killed")), 0
    while kills < KILLS:
        time.sleep(0.5 + 2.5 * chance.random())
        if driver.poll() is not None:
            driver = started("sweep", "retry", file, "--workers", "2", "--out", str(tmp_path / "killed"))
            continue
        with suppress(psutil.NoSuchProcess, IndexError):
            workers = [one for one in psutil.Process(driver.pid).children() if "normless" in " ".join(one.cmdline())]
            chance.choice(workers or psutil.Process(driver.pid).children()).kill()
            kills += 1
        if driver.poll() is None and not _is_unfinished(tmp_path / "killed"):
            break
    driver.communicate(timeout=900)
    ended("sweep", "retry", file, "--workers", "2", "--out", str(tmp_path / "killed"))
    assert rows_of(file, tmp_path / "killed") == rows_of(file, tmp_path / "whole")


def _is_unfinished(out: Path) -> bool:
    return any((out / "work").glob("*/config.yaml")) or not (out / "runs.sqlite").exists()


def _limited(what: int, size: int) -> Any:
    return lambda: resource.setrlimit(what, (size, size))


def test_a_worker_without_memory_fails_alone(tmp_path: Path) -> None:
    wide = "normless:dense(depth=3, width=11000)"
    models: Sequence[str] = (wide, "normless:dense(depth=3, width=8)")
    file = sweep_in(tmp_path, axes={"model": list(models)}, rates=[0.1], replicates=1, base=BASE | {"epochs": 1})
    limit = _limited(resource.RLIMIT_AS, 9 * 2**30)
    _, said = ended("sweep", "run", file, "--workers", "2", "--out", str(tmp_path / "out"), preexec_fn=limit)
    with_limit = {row["outcome"] for row in _outcomes(file, tmp_path / "out") if row["model"] == models[1]}
    assert with_limit, said
    assert "failed" not in with_limit
    assert {row["outcome"] for row in _outcomes(file, tmp_path / "out") if row["model"] == wide} <= {"failed"}


def _outcomes(file: str, out: Path) -> Sequence[dict[str, Any]]:
    assert ended("sweep", "export", file, str(out / "rows.parquet"), "--out", str(out))[0] == 0
    rows: list[dict[str, Any]] = pd.read_parquet(out / "rows.parquet").to_dict("records")
    return rows


@pytest.mark.parametrize("size", [10_000, 100_000, 200_000, 400_000])
def test_files_that_may_not_grow(tmp_path: Path, size: int) -> None:
    flags = [word for name, value in BASE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    for name in ("full", "whole"):
        words = ("train", *flags, "--scheme", "skipinit", "--json", "--out", str(tmp_path / name))
        if name == "full":
            code, said = ended(*words, preexec_fn=_limited(resource.RLIMIT_FSIZE, size))
            assert code in (0, 1, 2), said
        assert ended(*words)[0] == 0
    assert _result(tmp_path / "full") == _result(tmp_path / "whole")


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    jumping = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    file = sweep_in(tmp_path)
    for name, env in (("jumps", jumping), ("whole", {})):
        code, said = ended("sweep", "run", file, "--workers", "2", "--out", str(tmp_path / name), env=env)
        assert code == 0, said
    assert rows_of(file, tmp_path / "jumps") == rows_of(file, tmp_path / "whole")


def _result(folder: Path) -> Any:
    values = json.loads((folder / "result.json").read_text())
    rows = [{name: value for name, value in row.items() if "seconds" not in name} for row in values["epochs"]]
    return values["outcome"], values["test_accuracy"], rows
