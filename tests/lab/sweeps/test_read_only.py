"""Finished sweeps in a folder that cannot be written, and in folders of odd names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from lab_helpers import Here, tiny_sweep

from normless_lab.sweeps import Laboratory
from normless_lab.sweeps._status import sweep_status
from normless_lab.sweeps._store import StateError

METRICS = ["test_accuracy"]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder whose name cannot be a part of a URL."""
    folder = tmp_path / "a?b=1&c%20d#e;f é"
    with Laboratory(folder, executor=Here) as lab:
        lab.run(tiny_sweep())
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    return folder


def _unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a medium that is read-only: root may write to every folder that is not."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **how: mode != os.W_OK and access(path, mode, **how))


def test_a_finished_sweep_is_read_where_nothing_can_be_written(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(finished.rglob("*"))
    _unwritable(monkeypatch)
    with Laboratory(finished, executor=Here) as lab:
        assert len(lab.read(tiny_sweep()).runs) == 12
        assert sweep_status(lab, tiny_sweep(), METRICS).finished == 12
        assert lab.run(tiny_sweep()).missing == 0
        assert sorted(finished.rglob("*")) == before, "not even a log"
        with pytest.raises(StateError, match="readonly database"):
            lab.state.remove(lab.state.hashes())


def test_a_log_that_cannot_be_folded_in_is_told(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Laboratory(finished, executor=Here) as lab:
        lab.run(tiny_sweep(seed=7))
        # As it is after the process was killed.
        shutil.copytree(finished, tmp_path / "killed")
    _unwritable(monkeypatch)
    with pytest.raises(StateError, match=r"its log runs\.sqlite-wal is not folded in; copy the folder"):
        Laboratory(tmp_path / "killed")
