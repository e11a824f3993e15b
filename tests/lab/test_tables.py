"""Tables in files that others open: texts that a spreadsheet would take for formulas stay texts."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from normless.saving import write_csv


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "-2+3", "\r\n=1"])
def test_no_cell_is_a_formula(text: str, tmp_path: Path) -> None:
    write_csv(pd.DataFrame({"error": [text, None], "=n": [-1.5, 2.0]}), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        header, first, second = csv.reader(file)
    assert header[1] == "'=n"
    assert first == ["'" + text.replace("\r\n", "\n").replace("\r", "\n"), "-1.5"]
    assert second == ["", "2.0"]


@pytest.mark.parametrize("text", ["-1.5", "skipinit(alpha=-1)", ""])
def test_numbers_and_other_texts_are_as_they_are(text: str, tmp_path: Path) -> None:
    write_csv(pd.DataFrame({"label": [text, "x"]}), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert [row[0] for row in csv.reader(file)] == ["label", text, "x"]
