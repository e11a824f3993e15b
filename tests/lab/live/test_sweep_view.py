"""The view of a sweep, by its file and by its folder of results: progress, runs in flight, the best ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from filelock import FileLock

from normless_lab.live._views import SweepViewer
from normless_lab.sweeps import Laboratory, RunRow, Sweep

AXES = {"scheme": ["none", "skipinit", "<b id=evil>fixup"]}
SWEEP = Sweep.from_dict({"name": "tiny", "base": {"epochs": 4}, "axes": AXES, "rates": [0.1], "replicates": 2})


def finished(config: Any, accuracy: float | None) -> RunRow:
    ended: dict[str, Any] = {"outcome": "trained", "error": None}
    ended["result"] = {"test_accuracy": accuracy, "epochs": []}
    if accuracy is None:
        ended = {"outcome": "failed", "error": "ValueError: <b id=evil>", "result": None}
    when = {"seconds": 1.0, "finished_at": "2026-01-01T00:00:00", "machine": "here", "versions": {}}
    return RunRow(hash=config.hash, kind="train", config=config.to_dict(), **ended, **when)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    """Two of six runs finished, one failed, one running, one interrupted, one not begun."""
    configs = [point.config for point in SWEEP.points()]
    with Laboratory(tmp_path / "lab") as lab, ExitStack() as locks:
        lab.folder.mkdir()
        lab.state.add([finished(configs[0], 0.5), finished(configs[1], 0.75), finished(configs[2], None)])
        for config in configs[3:5]:
            folder = lab.work / config.hash
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
            curves = {"epoch": [1, 2], "training_loss": [2.0, 1.0], "test_accuracy": [0.25, 0.5]}
            pd.DataFrame(curves).to_parquet(folder / "epochs.parquet")
            (folder / "lock").touch()
        locks.enter_context(FileLock(lab.work / configs[3].hash / "lock"))
        yield lab


def test_a_sweep_by_its_file(lab: Laboratory) -> None:
    view = SweepViewer(lab, ["test_accuracy"], SWEEP).view()
    assert (view.title, view.state, view.done, view.of) == ("tiny", "running", 3, 6)
    assert view.words == "3 of 6 runs finished (2 trained, 1 failed), 1 running, 1 interrupted"
    assert view.findings == [("1 runs failed: ValueError: <b id=evil>", "")]
    running, best = view.tables
    assert [list(row) for row in running.rows] == [["skipinit", "0.1", "1", "2 of 4"]]
    assert [list(row) for row in best.rows] == [
        ["none", "0.1", "1", "trained", "0.75"],
        ["none", "0.1", "0", "trained", "0.5"],
    ]
    loss, accuracy = view.charts
    assert (loss.lines[0].name, loss.lines[0].y) == ("skipinit, rate 0.1, seed 1", [2.0, 1.0])
    assert accuracy.lines[0].y == [25.0, 50.0]
    json.dumps(view.to_dict(), allow_nan=False)
