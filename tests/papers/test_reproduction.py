"""A result and its text as JSON say the same, whatever stands in its tables."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from synthetic_results import made_up

from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction, ResultError, table_from_dict, table_to_dict

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
CELLS = {"number": NUMBERS, "text": st.text(st.characters(codec="utf-8"), min_size=1), "whole": st.integers(-9, 9)}


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=6))
def test_tables_survive(rows: list[dict[str, Any]]) -> None:
    table = pd.DataFrame([row | {"text": f"t{row['text']}"} for row in rows])
    back = table_from_dict(through_json(table_to_dict(table)))
    assert_frame_equal(back, table, check_dtype=False)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 99}, "written by a later normless"),
        ({"format": None}, "expected a result as normless reproduce writes it"),
        ({"id": "fixup/nothing"}, "fixup/nothing"),
    ],
)
def test_what_cannot_be_read_is_told(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ResultError, match=problem):
        Reproduction.from_dict(made_up("fixup/fixup").to_dict() | changes)
    with pytest.raises(ResultError, match="checks"):
        Reproduction.from_dict(
            {name: held for name, held in made_up("fixup/fixup").to_dict().items() if name != "checks"}
        )


@pytest.mark.parametrize("name", [name for name in published() if name.endswith("table-4")] + ["fixup/theorem-1"])
def test_results_survive(name: str) -> None:
    result = made_up(name, verdict="fails")
    back = Reproduction.from_dict(through_json(result.to_dict()))
    assert table_to_dict(back.measured) == table_to_dict(result.measured)
    assert (back.id, back.budget, back.on, back.asked, back.remarks) == (
        name,
        "smoke",
        result.on,
        result.asked,
        result.remarks,
    )
    assert back.verdict == result.verdict == "not seen here"
    assert back.distance == result.distance
    first, last, bound = back.checks[1].numbers.values()
    assert (first, bound) == (2.3, math.inf)
    assert math.isnan(last)
    assert back.to_dict() == result.to_dict()
