"""The plots of differences to a baseline, and lines of single runs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_lab.plots import SCHEME_INKS, lines
from normless_papers.plots import DIFFERENCES, TEST_ERRORS, beside_published

INKS = {"one": SCHEME_INKS["fixup"], "two": SCHEME_INKS["skipinit"]}


def differences(beside: str | None = None, **changes: object) -> Axes:
    rows = [
        {"l2": "one", "difference": 1.0, "error": 0.25, "model": "a"},
        {"l2": "two", "difference": -2.0, "error": math.nan, "model": "a"},
        {"l2": "one", "difference": math.nan, "error": math.nan, "model": "b"},
    ]
    table = pd.DataFrame(rows).assign(**changes)
    return DIFFERENCES(table, y="l2", inks=INKS, title="Title", x_label="points", groups="model", beside=beside)


def test_bars_are_two_standard_errors_and_unknown_errors_are_hollow() -> None:
    axes = differences()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["a", "one", "two", "b", "one"]
    drawn = {line.get_label(): line for line in axes.containers}
    assert len(drawn) == 2
    (bars,) = [one for one in axes.containers if one.get_label() == "one"]
    segment = bars.lines[2][0].get_segments()[0]
    assert segment[:, 0].tolist() == [0.5, 1.5]
    assert segment[:, 1].tolist() == [1, 1]
    (hollow,) = [one for one in axes.containers if one.get_label() == "two, hollow"]
    assert hollow.lines[0].get_markerfacecolor() != hollow.lines[0].get_color()
    assert axes.get_ylim() == (4.5, -0.5)


def test_published_differences_are_hollow_diamonds() -> None:
    axes = differences(beside="published", published=[0.5, np.nan, 2.0])
    diamonds = [line for line in axes.lines if line.get_label() == "_beside"]
    assert [float(line.get_xdata()[0]) for line in diamonds] == [0.5, 2.0]  # type: ignore[index, arg-type]
    assert {line.get_marker() for line in diamonds} == {"D"}


def test_published_numbers_have_an_axis_of_their_own() -> None:
    rows = [{"name": "fixup", "measured": 60.0, "deviation": 50.0, "published": 7.0}]
    axes = beside_published(pd.DataFrame(rows), TEST_ERRORS, "measured", "Errors", "test error (%)")
    upper, lower = axes.figure.axes
    drawn = [[float(one.lines[0].get_xdata()[0]) for one in panel.containers] for panel in (upper, lower)]
    assert drawn == [[60.0], [7.0]]
    # A deviation of 50 points about 60 % ends at 100 %.
    assert upper.containers[0].lines[2][0].get_segments()[0][:, 0].tolist() == [10.0, 100.0]


def test_a_line_per_series_through_its_means_and_a_thin_one_per_run() -> None:
    rows = [
        {"method": method, "hash": f"{method}{run}", "epoch": epoch, "bleu": value}
        for method, values in {"one": (1.0, 3.0), "two": (2.0, math.nan)}.items()
        for run in (0, 1)
        for epoch, value in enumerate((values[0], values[1] + run), start=1)
    ]
    axes = lines(pd.DataFrame(rows), x="epoch", y="bleu", by="method", each="hash", inks=INKS, title="Title")
    drawn = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert list(drawn) == ["one", "two"]
    assert np.asarray(drawn["one"].get_ydata()).tolist() == [1.0, 3.5]
    assert np.isnan(drawn["two"].get_ydata()).tolist() == [False, True]
    assert sum(str(line.get_label()) == "_run" for line in axes.lines) == 4


def test_missing_columns_are_named() -> None:
    with pytest.raises(ValueError, match="lacks error"):
        DIFFERENCES(pd.DataFrame({"l2": ["one"], "difference": [1.0]}), y="l2", inks=INKS)
    with pytest.raises(ValueError, match="lacks bleu, hash"):
        lines(pd.DataFrame({"method": ["one"], "epoch": [1]}), x="epoch", y="bleu", by="method", each="hash")
