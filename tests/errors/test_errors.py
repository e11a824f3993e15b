"""Errors of every public call: their type, what they name, and that a person can read them."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import normless as nl
from errors.wrong import Wrong

TABLES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "test_errors", "wrong")
)
ROWS: list[Wrong] = [row for table in TABLES for row in import_module(f"errors.{table}").ERRORS]
OF_PYTHON = ("object has no attribute", "unexpected keyword", "unhashable", "not subscriptable", "NoneType")


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_call_is_refused_with_a_sentence(row: Wrong) -> None:
    with pytest.raises(row.error) as caught:
        row.call()
    assert type(caught.value) is row.error
    text = str(caught.value).strip()
    assert not [word for word in row.words if word not in text], text
    assert not [word for word in OF_PYTHON if word in text], text
    # A sentence may begin with the name of a scheme, or with a name that the row states.
    begins_with_a_name = not text[0].isalpha() or "_" in text.split()[0] or re.split(r"\W", text)[0] in nl.SCHEMES
    assert text[0].isupper() or begins_with_a_name or text.startswith(row.words), text
    assert text[-1] in ".:)?'\"`" or "\n" in text, text


def test_rows_have_names_of_their_own_and_name_something() -> None:
    assert not [name for name, count in Counter(row.name for row in ROWS).items() if count > 1]
    assert not [row.name for row in ROWS if not row.words or " at 0x" in row.name]
