"""Two drivers of one sweep, in one folder or on one database: both end, and each run has one row."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock
from lab_helpers import Here, TinyConfig, tiny_sweep

from normless_lab.sweeps import Laboratory
from normless_lab.sweeps._processes import WorkerDiedError
from normless_lab.sweeps._runs import LOCK, carry_out_run, put_away
from normless_lab.sweeps._store import sqlite_url
from normless_lab.train._turns import Turn

SWEEP = tiny_sweep(replicates=4, best=4)


def _drive(folder: Path) -> None:
    with Laboratory(folder, executor=Here) as lab:
        assert lab.run(SWEEP).missing == 0


def test_drivers_in_one_folder_both_end(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    drivers = [context.Process(target=_drive, args=(tmp_path,)) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert [driver.exitcode for driver in drivers] == [0, 0, 0]
    with Laboratory(tmp_path, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
        assert len(rows) == len(SWEEP.points())
        assert {row.outcome for row in rows.values()} == {"trained"}
        assert lab.run(SWEEP).missing == 0
    assert [*(tmp_path / "work").glob("*")] == []


class _AnotherFirst(Here):
    """Before its first run, another driver runs the whole sweep in a folder of its own."""

    def __init__(self, folder: Path, url: Any) -> None:
        super().__init__(window=4)
        self.folder, self.url = folder, url

    def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
        if not self.carried_out:
            with Laboratory(self.folder, url=self.url, executor=Here) as other:
                other.run(SWEEP)
        return super().submit(*args, **keywords)


def test_drivers_of_separate_folders_look_at_their_database_again(tmp_path: Path) -> None:
    executor = _AnotherFirst(tmp_path / "other", sqlite_url(tmp_path / "runs.sqlite"))
    with Laboratory(tmp_path / "own", url=executor.url, executor=lambda: executor) as lab:
        assert lab.run(SWEEP).missing == 0
        assert len(lab.state.hashes()) == len(SWEEP.points()) == 24
    assert len(executor.carried_out) == 4, "those that were submitted before the other was done"


@pytest.mark.parametrize("error", [None, FileExistsError])
def test_a_run_whose_folder_another_driver_removes_is_submitted_again(
    error: type[OSError] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or removes while its lock is taken: mkdir raises FileExistsError if it is gone before it is looked at."""
    folder, config = tmp_path / "run", TinyConfig()
    run = Turn(carry_out_run, config.KIND, config.to_dict(), str(folder))
    if error is None:
        folder.mkdir()
        with FileLock(folder / LOCK):
            assert not run.go_on()
            shutil.rmtree(folder)
    else:
        monkeypatch.setattr(FileLock, "acquire", Mock(side_effect=error(17, "File exists")))
    while not run.go_on():
        pass
    with pytest.raises(WorkerDiedError, match=r"removed its folder"):
        run.result()


def test_a_folder_in_use_is_not_put_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = TinyConfig()
    assert carry_out_run(config.KIND, config.to_dict(), str(folder)).outcome == "trained"
    away = partial(put_away, folder, tmp_path / "kept")
    with FileLock(folder / LOCK):
        away()
        assert folder.exists()
    away()
    assert not folder.exists()
    assert (tmp_path / "kept" / "run" / "epochs.txt").exists()
    away()
