"""Stored results are complete or not there, and come back in the order of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from synthetic_results import figure, made_up

from normless_papers import storage
from normless_papers.budgets import Budget
from normless_papers.published import published
from normless_papers.reproduction import ResultError
from normless_papers.storage import folder_of, load, save, stored


def test_what_is_saved_can_be_loaded_and_looked_at(tmp_path: Path) -> None:
    one = made_up("fixup/table-1")
    folder = save(one, figure(), tmp_path)
    assert folder == tmp_path / "artefacts" / "fixup" / "table-1" / "smoke"
    assert sorted(path.name for path in folder.iterdir()) == [
        "figure.png",
        "figure.svg",
        "measured.csv",
        "result.json",
    ]
    back = load(tmp_path, one.id, one.budget)
    assert back is not None
    assert back.to_dict() == one.to_dict()
    assert len(pd.read_csv(folder / "measured.csv")) == len(one.measured)
    assert ElementTree.parse(folder / "figure.svg").getroot().tag.endswith("svg")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_later_result_leaves_nothing_of_the_older(tmp_path: Path) -> None:
    save(made_up("fixup/table-1"), figure(), tmp_path)
    folder = save(made_up("fixup/table-1", error="No memory was left."), None, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["measured.csv", "result.json"]
    back = load(tmp_path, "fixup/table-1", "smoke")
    assert back is not None
    assert back.error == "No memory was left."


@pytest.mark.parametrize("step", ["to_csv", "to_dict"])
def test_what_is_interrupted_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    save(made_up("fixup/table-1"), None, tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    home = pd.DataFrame if step == "to_csv" else storage.Reproduction
    monkeypatch.setattr(home, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(made_up("fixup/table-1"), None, tmp_path)
    monkeypatch.undo()
    assert load(tmp_path, "fixup/table-1", "smoke") is None


def test_all_come_back_in_order(tmp_path: Path) -> None:
    budgets: tuple[Budget, ...] = ("paper", "smoke")
    for name in ("gamma/table-2", "skipinit/table-1", "fixup/fixup"):
        for budget in budgets:
            save(made_up(name, budget), None, tmp_path)
    found = [(one.id, one.budget) for one in stored(tmp_path)]
    names = [name for name in published() if name in {"gamma/table-2", "skipinit/table-1", "fixup/fixup"}]
    assert found == [(name, budget) for name in names for budget in ("smoke", "paper")]
    assert list(stored(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1}', "\ud83d".encode("utf-8", "surrogatepass").decode("latin1")]
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    save(made_up("fixup/fixup"), None, tmp_path)
    path = folder_of(tmp_path, "fixup/fixup", "smoke") / "result.json"
    path.write_text(text, encoding="latin1")
    with pytest.raises(ResultError, match=r"result\.json cannot be read: .*; carry it out again with --again"):
        load(tmp_path, "fixup/fixup", "smoke")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("result.json", b'"seconds": 0', b'"seconds": 1'),
        ("measured.csv", b",", b";"),
        ("figure.svg", b"<path", b"<Path"),
        ("figure.png", b"IHDR", b"IHDr"),
    ],
)
def test_one_changed_byte_is_told(tmp_path: Path, file: str, old: bytes, new: bytes) -> None:
    path = save(made_up("fixup/table-1", seconds=0.0), figure(), tmp_path) / file
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    said = "it" if file == "result.json" else f"{file} beside it"
    with pytest.raises(ResultError, match=rf"cannot be read: {said} was damaged after it was written; carry it out"):
        load(tmp_path, "fixup/table-1", "smoke")


def test_a_result_without_digests_is_taken_as_it_is(tmp_path: Path) -> None:
    path = save(made_up("fixup/table-1"), None, tmp_path) / "result.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    assert set(values.pop("files")) == {"measured.csv"}
    del values["digest"]
    path.write_text(json.dumps(values), encoding="utf-8")
    assert load(tmp_path, "fixup/table-1", "smoke") is not None
