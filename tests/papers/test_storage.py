"""Results are stored whole or not at all, and come back the same; damaged and missing rows are told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from pandas.testing import assert_frame_equal
from papers_helpers import figure, result_of

from normless_papers.artefact import MissingRunsError
from normless_papers.evidence import beside
from normless_papers.results.reproduction import (
    Reproduction,
    ResultError,
    folder_of,
    load,
    save,
    table_from_dict,
    table_to_dict,
)
from normless_papers.results.run_file import rebuilt, write_runs

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
CELLS = {"number": NUMBERS, "text": st.text(st.characters(codec="utf-8"), min_size=1), "whole": st.integers(-9, 9)}
KEYS = st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=8)


def test_what_is_saved_can_be_loaded_and_looked_at(tmp_path: Path) -> None:
    result = result_of("fixup/table-1")
    folder = save(result, figure(), tmp_path)
    assert folder == tmp_path / "artefacts" / "fixup" / "table-1" / "smoke"
    files = ["figure.png", "figure.svg", "measured.csv", "result.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    back = load(tmp_path, result.id, result.budget)
    assert back is not None
    assert back.to_dict() == result.to_dict()
    assert len(pd.read_csv(folder / "measured.csv")) == len(result.measured)


def test_what_is_interrupted_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(result_of("fixup/table-1"), None, tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reproduction, "to_dict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(result_of("fixup/table-1"), None, tmp_path)
    monkeypatch.undo()
    assert load(tmp_path, "fixup/table-1", "smoke") is None


@pytest.mark.parametrize(
    ("file", "old", "new"), [("result.json", b'"seconds": 0', b'"seconds": 1'), ("figure.svg", b"<path", b"<Path")]
)
def test_one_changed_byte_is_told(tmp_path: Path, file: str, old: bytes, new: bytes) -> None:
    path = save(result_of("fixup/table-1", seconds=0.0), figure(), tmp_path) / file
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    said = "it" if file == "result.json" else f"{file} beside it"
    with pytest.raises(ResultError, match=rf"cannot be read: {said} was damaged after it was written"):
        load(tmp_path, "fixup/table-1", "smoke")


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@settings(max_examples=8)
@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=6))
def test_tables_survive(rows: list[dict[str, Any]]) -> None:
    table = pd.DataFrame([row | {"text": f"t{row['text']}"} for row in rows])
    back = table_from_dict(through_json(table_to_dict(table)))
    assert_frame_equal(back, table, check_dtype=False)


@settings(max_examples=20)
@given(KEYS, KEYS)
def test_every_published_and_measured_row_is_there_once_and_in_order(printed: list[int], found: list[int]) -> None:
    rows = [{"depth": depth, "loss": depth + 0.5} for depth in printed]
    measured = pd.DataFrame({"depth": [float(depth) for depth in found], "loss": [depth + 0.25 for depth in found]})
    table = beside(rows, measured, ["depth"])
    only_measured = [depth for depth in found if depth not in printed]
    assert table["depth"].tolist() == [str(depth) for depth in (*printed, *only_measured)]
    for row in table.to_dict("records"):
        depth = int(row["depth"])
        expected = depth + 0.5 if depth in printed else math.nan, depth + 0.25 if depth in found else math.nan
        assert (row["loss_published"], row["loss_measured"]) == pytest.approx(expected, nan_ok=True)


COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction" / "runs.parquet"


def test_what_was_measured_keeps_its_figure_in_a_file_of_runs(tmp_path: Path) -> None:
    """What was trained is drawn again from its runs."""
    result = result_of("fixup/theorem-1", basis="measurement")
    drawn = (save(result, figure(), tmp_path / "first") / "figure.svg").read_bytes()
    write_runs(tmp_path / "first", tmp_path / "runs.parquet")
    with rebuilt(tmp_path / "runs.parquet") as folder:
        assert (folder_of(folder, result.id, result.budget) / "figure.svg").read_bytes() == drawn
        write_runs(folder, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "runs.parquet").read_bytes()


def test_a_figure_that_is_not_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of("fixup/theorem-1", basis="measurement")
    values = result.to_dict() | {"drawn": {"svg": 1}}
    monkeypatch.setattr(Reproduction, "to_dict", lambda _: values)
    save(result, None, tmp_path / "first")
    write_runs(tmp_path / "first", tmp_path / "runs.parquet")
    with (
        pytest.raises(ResultError, match=r"fixup/theorem-1 .* a figure that is not text"),
        rebuilt(tmp_path / "runs.parquet"),
    ):
        pass


def test_without_its_runs_nothing_is_trained(tmp_path: Path) -> None:
    table = pd.read_parquet(COMMITTED)
    table[table["kind"] == "artefact"].to_parquet(tmp_path / "none.parquet")
    with (
        pytest.raises(MissingRunsError, match="runs of skipinit/skipinit are missing"),
        rebuilt(tmp_path / "none.parquet"),
    ):
        pass


def test_a_changed_number_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    table = pd.read_parquet(COMMITTED)
    table.loc[0, "seconds"] += 1e-9
    table.to_parquet(file)
    with pytest.raises(ResultError, match="damaged after it was written"), rebuilt(file):
        pass
