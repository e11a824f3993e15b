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

from normless_lab.plots import Law, Plot, inline_image, on_pages, save_svg, skip_variance_against_block, svg_text

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


@pytest.fixture
def signal() -> pd.DataFrame:
    blocks = np.arange(1, 199)
    laws = {"none": 2.0**blocks, "batch_norm": 1.0 * blocks, "skipinit": np.ones(198)}
    tables = [pd.DataFrame({"scheme": name, "block": blocks, "law": law}) for name, law in laws.items()]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(skip_variance=table["law"] * 1.03, predicted_skip_variance=table["law"])


def test_accuracy_lines_are_the_table_and_failed_runs_are_hollow(runs: pd.DataFrame) -> None:
    axes = accuracy_against_depth(runs)
    for scheme, rows in runs.groupby("scheme"):
        depths, accuracies = lines_of(axes)[scheme]
        assert depths == list(rows["depth"])
        np.testing.assert_array_equal(accuracies, rows["test_accuracy"])
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "100", "400"]
    assert lines_of(axes)["none, not trained"][0] == [100, 400]
    assert lines_of(axes)["skipinit, not trained"][0] == []
    assert names_in(axes) == ["skipinit  70 %", "none  11 %", "chance"]


def test_skip_variance_lines_are_the_table(signal: pd.DataFrame) -> None:
    axes = skip_variance_against_block(signal, laws={"none": "2ᵈ"})
    for scheme, rows in signal.groupby("scheme"):
        for label, column in (("predicted", "predicted_skip_variance"), ("measured", "skip_variance")):
            blocks, variances = lines_of(axes)[f"{scheme}, {label}"]
            assert blocks == list(rows["block"])
            np.testing.assert_array_equal(variances, rows[column])
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[1] == 4 * 198
    assert names_in(axes) == ["none  2ᵈ", "batch_norm", "skipinit"]


def test_figures_draw_where_they_are_told_and_leave_global_state_alone(
    runs: pd.DataFrame, signal: pd.DataFrame, tmp_path: Path
) -> None:
    before = dict(mpl.rcParams)
    left, right = Figure().subplots(1, 2)
    assert accuracy_against_depth(runs, left) is left
    assert skip_variance_against_block(signal, right) is right
    save_svg(left, tmp_path / "both.svg")
    assert dict(mpl.rcParams) == before


def test_svg_keeps_text_and_is_the_same_twice(runs: pd.DataFrame, tmp_path: Path) -> None:
    first, second = (
        save_svg(accuracy_against_depth(runs), tmp_path / name).read_text("utf-8") for name in ("1.svg", "2.svg")
    )
    assert first == second
    assert "skipinit  70 %" in "".join(ElementTree.fromstring(first).itertext())


def test_an_image_in_a_page_is_the_figure_in_the_colours_of_the_page(runs: pd.DataFrame) -> None:
    image = inline_image(svg_text(accuracy_against_depth(runs)), 'Accuracy & "depth"')
    ((tag, attributes),) = Reader(image).tags
    assert (tag, attributes["alt"]) == ("img", 'Accuracy & "depth"')
    kind, _, code = str(attributes["src"]).partition(",")
    assert kind == "data:image/svg+xml;base64"
    svg = b64decode(code).decode()
    assert "skipinit  70 %" in "".join(ElementTree.fromstring(svg).itertext())
    assert "fill: #0068a8" in svg, "programs that know no style sheets show the light colours"
    assert '[style*="fill: #0068a8"]{fill:#63b8f2 !important}' in svg
    assert on_pages(svg) == svg


def test_lengths_are_shortened_and_texts_are_not() -> None:
    text = '<svg width="72pt"><path d="M 1.23456 -7.5 L 0.1 2"/><text x="3.14159">0.00391</text></svg>'
    attributes = Reader(inline_image(text, "d")).tags[0][1]
    svg = b64decode(str(attributes["src"]).partition(",")[2]).decode()
    assert '<path d="M 1.23 -7.5 L 0.1 2"/><text x="3.14">0.00391</text>' in svg
    assert attributes["style"] == "max-width: 90pt"
