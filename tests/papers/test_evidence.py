"""Published and measured numbers side by side."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normless_papers.artefact import Artefact, Evidence
from normless_papers.claims import check
from normless_papers.evidence import beside
from normless_papers.published import published_as

KEYS = st.lists(st.integers(0, 9), unique=True, max_size=8)


@given(KEYS.filter(bool), KEYS.filter(bool))
def test_every_row_is_there_once_and_in_order(printed: list[int], found: list[int]) -> None:
    rows = [{"depth": depth, "loss": depth + 0.5} for depth in printed]
    measured = pd.DataFrame({"depth": [float(depth) for depth in found], "loss": [depth + 0.25 for depth in found]})
    table = beside(rows, measured, ["depth"])
    only_measured = [depth for depth in found if depth not in printed]
    assert table["depth"].tolist() == [str(depth) for depth in (*printed, *only_measured)]
    for row in table.to_dict("records"):
        depth = int(row["depth"])
        assert row["loss_published"] == depth + 0.5 if depth in printed else math.isnan(row["loss_published"])
        assert row["loss_measured"] == depth + 0.25 if depth in found else math.isnan(row["loss_measured"])


def test_missing_keys_are_empty_and_lists_are_text() -> None:
    rows = [{"variant": "skipinit", "range": [-4, -3]}]
    measured = pd.DataFrame({"variant": ["skipinit", None], "accuracy": [0.5, 0.25]})
    table = beside(rows, measured, ["variant"])
    assert table["variant"].tolist() == ["skipinit", ""]
    assert table["range"].iloc[0] == "-4, -3"
    assert table["accuracy"].tolist() == [0.5, 0.25]


def test_evidence_without_checks_or_with_unknown_columns_is_refused() -> None:
    artefact = Artefact(published_as("fixup/equation-1"), "formula", Evidence, checks=tuple)
    with pytest.raises(ValueError, match="fixup/equation-1 needs at least one check"):
        artefact.checks_of(Evidence(pd.DataFrame({"x": [1]}), ()))
    with pytest.raises(ValueError, match="has no column depth to set beside the published one; it has x"):
        Evidence(pd.DataFrame({"x": [1]}), (check("so", True),), {}, on=("depth",))
