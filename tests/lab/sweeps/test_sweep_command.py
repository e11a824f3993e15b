"""``normless sweep``: from a YAML file to tables, and what becomes of runs that failed or are not wanted any more."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from command_outputs import check_output
from filelock import FileLock
from lab_helpers import Here, TinyConfig, tiny_sweep
from rich.console import Console

from normless.cli import main
from normless_lab.cli._sweep_text import status_table
from normless_lab.sweeps import Laboratory, axis_of
from normless_lab.sweeps._runs import LOCK
from normless_lab.sweeps._status import prunable, prune, sweep_status

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    axes = {"scheme": ["none", "fixup"], "fate": {"well": {}, "badly": {"fate": "raises once", "good": 0.25}}}
    content = {
        "name": "tiny",
        "run": TinyConfig.KIND,
        "base": {"good": 1.0},
        "axes": axes,
        "replicates": 2,
        "best": 2,
    }
    content["rates"] = {"from": -3, "to": -1}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def said(tmp_path: Path, capsys: Capture) -> Any:
    """Runs a command and returns the JSON object that it prints, its exit code, and its standard error."""

    def run(*words: str) -> tuple[dict[str, Any], int, str]:
        code = main(["sweep", *words, "--out", str(tmp_path / "out"), "--json"])
        printed = capsys.readouterr()
        facts = json.loads(printed.out)
        check_output(f"sweep {words[0]}", facts)
        return facts, code, printed.err

    return run


def test_a_sweep_from_its_file_to_its_table(file: Path, tmp_path: Path, said: Any) -> None:
    before, _, _ = said("status", str(file))
    assert (before["wanted"], before["finished"], before["running"]) == (24, 0, [])
    facts, code, progress = said("run", str(file), "--workers", "1")
    assert code == 1
    # The best rate is beyond the grid, where the runs that went well follow it: 1 and 2.
    assert (facts["runs"], facts["missing"]) == (24 + 8, 0)
    assert facts["outcomes"] == {"trained": 20, "chance": 0, "diverged": 0, "failed": 12}
    assert facts["errors"] == ["ArithmeticError: no such number as 0", "ArithmeticError: no such number as 1"]
    assert "tiny: 24 runs to do, 0 finished before" in progress
    best = {(row["scheme"], row["fate"]): (row["rate"], row["mean"]) for row in facts["optima"]}
    assert best["none", "well"] == best["fixup", "well"] == (1.0, pytest.approx(1 - 0.5e-3))
    assert best["none", "badly"] == (None, None)

    again, code, progress = said("run", str(file), "--workers", "1")
    assert (again, code, progress) == (facts, 1, "")
    status, _, _ = said("status", str(file))
    assert (status["finished"], status["wanted"], status["interrupted"]) == (32, 32, 0)
    assert [one["runs"] for one in status["errors"]] == [6, 6]

    retried, code, progress = said("retry", str(file), "--workers", "1")
    assert "12 failed runs start again" in progress
    assert code == 0
    assert (retried["runs"], retried["outcomes"]["trained"]) == (32, 32)
    assert list((tmp_path / "out" / "work").iterdir()) == []

    for name, words in (("runs.csv", []), ("epochs.parquet", ["--epochs"])):
        to = tmp_path / "tables" / name
        exported, _, _ = said("export", str(file), str(to), *words)
        table = pd.read_csv(to) if name.endswith("csv") else pd.read_parquet(to)
        assert exported == {"name": "tiny", "file": str(to), "rows": len(table), "missing": 0}
        assert len(table) == (64 if words else 32)
        assert set(table["scheme"]) == {"none", "fixup"}


def test_prune_keeps_what_a_sweep_has_and_what_is_in_flight(tmp_path: Path) -> None:
    wide = tiny_sweep(base={"good": 1.0})
    narrow = tiny_sweep(base={"good": 1.0}, axes={"scheme": axis_of("scheme", ["none"])})
    with Laboratory(tmp_path, executor=Here) as lab:
        runs = lab.run(wide).runs
        lab.carry_out([TinyConfig(scheme="none", good=1.0, seed=9, fate="raises")])
        unknown, held = lab.work / ("0" * 64), lab.work / ("1" * 64)
        unknown.mkdir()
        (unknown / LOCK).touch()
        held.mkdir()
        with FileLock(held / LOCK):
            found = prunable(lab, [narrow], ["test_accuracy"])
            gone = set(runs.loc[runs["scheme"] == "fixup", "hash"])
            failed = TinyConfig(scheme="none", good=1.0, seed=9, fate="raises").hash
            assert set(found.rows) == gone | {failed}
            assert set(found.folders) == {unknown, lab.work / failed}
            assert len(lab.state.hashes()) == len(runs) + 1
            prune(lab, found)
        assert lab.state.hashes() == set(runs["hash"]) - gone
        assert list(lab.work.iterdir()) == [held]
        assert prunable(lab, [narrow, wide], ["test_accuracy"]).rows == ()


def test_prune_deletes_nothing_of_others(tmp_path: Path) -> None:
    """Folders with other names, without the lock of a run, that are links, or in a folder that is a link."""
    elsewhere, name = tmp_path / "thesis", "2" * 64
    for place in (elsewhere / name, elsewhere / "chapters"):
        place.mkdir(parents=True)
        (place / LOCK).touch()
    with Laboratory(tmp_path / "lab", executor=Here) as lab:
        lab.run(tiny_sweep())
        (lab.work / "notes").mkdir()
        (lab.work / ("3" * 64)).mkdir()
        (lab.work / ("4" * 64)).symlink_to(elsewhere / name)
        lab.kept.symlink_to(elsewhere)
        assert prunable(lab, [], ["test_accuracy"]).folders == ()
        swapped = lab.work / ("5" * 64)
        swapped.mkdir()
        (swapped / LOCK).touch()
        found = prunable(lab, [], ["test_accuracy"])
        assert found.folders == (swapped,)
        (swapped / LOCK).unlink()
        swapped.rmdir()
        swapped.symlink_to(elsewhere / name)
        prune(lab, found)
    assert sorted(path.name for path in elsewhere.iterdir()) == [name, "chapters"]
    assert all((path / LOCK).exists() for path in elsewhere.iterdir())


def test_status_tells_what_runs_and_what_was_interrupted(tmp_path: Path) -> None:
    sweep = tiny_sweep()
    points = sweep.points()
    with Laboratory(tmp_path, executor=Here) as lab:
        lab.carry_out([point.config for point in points[:3]])
        running, interrupted = (lab.work / point.config.hash for point in points[3:5])
        for folder, epochs in ((running, 1), (interrupted / "epochs-4", 3)):
            folder.mkdir(parents=True)
            pd.DataFrame({"epoch": range(epochs)}).to_parquet(folder / "epochs.parquet")
        (interrupted / LOCK).touch()
        with FileLock(running / LOCK):
            status = sweep_status(lab, sweep, ["test_accuracy"])
    assert (status.wanted, status.finished, status.interrupted) == (12, 3, 1)
    assert [one.running for one in status.combinations] == [1, 0]
    (flight,) = status.running
    assert (flight.labels, flight.rate, flight.seed) == (points[3].labels, points[3].rate, points[3].seed)
    assert (flight.epochs, flight.of) == (1, 2)
    stream = io.StringIO()
    Console(file=stream, width=120).print(status_table(status))
    shown = " ".join(stream.getvalue().split())
    for part in ("3 of 12 runs finished, 1 running, 1 interrupted", "none 3/6 3 – – – 1", "none 0.25 1 1/2"):
        assert part in shown


def test_prune_only_counts_without_yes(file: Path, tmp_path: Path, said: Any) -> None:
    with Laboratory(tmp_path / "out", executor=Here) as lab:
        lab.carry_out([TinyConfig(seed=1), TinyConfig(seed=2)])
    for words, removed in (((), False), (("--yes",), True)):
        assert said("prune", str(file), *words)[0] == {"rows": 2, "folders": [], "removed": removed}
    assert said("prune", str(file))[0]["rows"] == 0


def test_report_writes_the_page_of_a_sweep(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its file or the folder of its runs; names in the files of a folder lead to no place outside of it."""
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(file.read_text()) | {"axes": {"scheme": ["none"]}, "name": "my/depth"}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(["sweep", "run", str(file), "--workers", "1"]) == 0
    folder = tmp_path / "normless-sweeps"
    assert (folder / file.name).read_bytes() == file.read_bytes()
    assert main(["report", str(file)]) == 0
    page = (folder / "index.html").read_text("utf-8")
    assert "my/depth" in page
    (folder / "other.yaml").write_text(yaml.safe_dump(content | {"name": "../../escaped"}, sort_keys=False))
    assert main(["report", str(folder)]) == 0
    assert (folder / "tiny" / "index.html").is_file()
    assert not (tmp_path.parent / "escaped").exists()
    assert main(["report", str(folder), "--claims", "claims.md"]) == 2
