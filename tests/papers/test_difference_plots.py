"""The plots of differences to a baseline, and lines of single runs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import SCHEME_INKS, lines
from normless_papers.plots import DIFFERENCES

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
