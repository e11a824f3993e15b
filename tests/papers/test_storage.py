"""Stored results are complete or not there, and come back in the order of the papers."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from synthetic_results import figure, made_up

from normless_papers.results import storage
from normless_papers.results.reproduction import ResultError
from normless_papers.results.storage import load, save


def test_what_is_saved_can_be_loaded_and_looked_at(tmp_path: Path) -> None:
    result = made_up("fixup/table-1")
    folder = save(result, figure(), tmp_path)
    assert folder == tmp_path / "artefacts" / "fixup" / "table-1" / "smoke"
    assert sorted(path.name for path in folder.iterdir()) == [
        "figure.png",
        "figure.svg",
        "measured.csv",
        "result.json",
    ]
    back = load(tmp_path, result.id, result.budget)
    assert back is not None
    assert back.to_dict() == result.to_dict()
    assert len(pd.read_csv(folder / "measured.csv")) == len(result.measured)
    assert ElementTree.parse(folder / "figure.svg").getroot().tag.endswith("svg")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


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
