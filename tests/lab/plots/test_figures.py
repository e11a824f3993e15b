"""Figures draw the numbers they were given, and nothing of matplotlib's global state changes."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from drawn import lines_of, names_in
from matplotlib.figure import Figure
from page_reader import Reader

from normless_lab.plots import Law, Plot, inline_image, save_svg
from normless_lab.plots._page import on_pages, svg_text

accuracy_against_depth = Plot(
    "lines",
    lambda runs: runs.assign(failed=runs["outcome"] != "trained"),
    x="depth",
    y="test_accuracy",
    by="scheme",
    hollow="failed",
    named=lambda scheme, value: f"{scheme}  {100 * value:.0f} %",
    log="x",
    laws=[Law("chance", lambda depth: np.full_like(depth, 0.1))],
)


@pytest.fixture
def runs() -> pd.DataFrame:
    table = pd.DataFrame({"depth": [16, 100, 400] * 2, "scheme": ["none"] * 3 + ["skipinit"] * 3})
    outcomes = ["trained", "chance", "diverged", "trained", "trained", "trained"]
    return table.assign(outcome=outcomes, test_accuracy=[0.81, 0.11, np.nan, 0.9, 0.8, 0.7])


def test_accuracy_lines_are_the_table_and_failed_runs_are_hollow(runs: pd.DataFrame) -> None:
    axes = accuracy_against_depth(runs)
    for scheme, rows in runs.groupby("scheme"):
        depths, accuracies = lines_of(axes)[scheme]
        assert depths == list(rows["depth"])
        np.testing.assert_array_equal(accuracies, rows["test_accuracy"])
    assert lines_of(axes)["none, not trained"][0] == [100, 400]
    assert lines_of(axes)["skipinit, not trained"][0] == []
    assert names_in(axes) == ["skipinit  70 %", "none  11 %", "chance"]


def test_a_figure_is_drawn_where_it_is_told_is_the_same_twice_and_leaves_global_state_alone(
    runs: pd.DataFrame, tmp_path: Path
) -> None:
    before, axes = dict(mpl.rcParams), Figure().subplots()
    assert accuracy_against_depth(runs, axes) is axes
    assert dict(mpl.rcParams) == before
    files = [save_svg(accuracy_against_depth(runs), tmp_path / name).read_bytes() for name in ("1.svg", "2.svg")]
    assert files[0] == files[1]


def test_an_image_in_a_page_is_the_figure_in_the_colours_of_the_page(runs: pd.DataFrame) -> None:
    image = inline_image(svg_text(accuracy_against_depth(runs)), 'Accuracy & "depth"')
    ((tag, attributes),) = Reader(image).tags
    assert (tag, attributes["alt"]) == ("img", 'Accuracy & "depth"')
    kind, _, code = str(attributes["src"]).partition(",")
    assert kind == "data:image/svg+xml;base64"
    svg = b64decode(code).decode()
    assert "skipinit  70 %" in "".join(ElementTree.fromstring(svg).itertext())
    assert on_pages(svg) == svg
