"""The plots of training runs draw their tables: optima, curves, differences to a baseline."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from drawn import lines_of, names_in
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from normless_lab.plots import (
    SCHEME_INKS,
    accuracy_against_epoch,
    inks_of,
    lines,
    new_axes,
    optimum_against,
    rate_against,
    series_ink,
)
from normless_papers.plots import DIFFERENCES, TEST_ERRORS, beside_published

INKS = inks_of({"batch_norm": "batch_norm", "bare": "none", "again": "none"})
STYLE = {"series": "method", "across": "batch_size", "inks": INKS}


def optima() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["batch_norm", "batch_norm", "bare", "bare"],
            "batch_size": [256, 16, 16, 256],
            "mean": [94.0, 93.0, 90.0, 10.0],
            "deviation": [0.5, math.nan, 0.1, 0.0],
            "rate": [1.0, 0.25, 0.25, math.nan],
            "rate_low": [0.5, 0.25, 0.125, math.nan],
            "rate_high": [2.0, 0.25, 0.25, math.nan],
            "trainable": [True, True, True, False],
        }
    )


def test_means_in_order_and_hollow_where_nothing_trained() -> None:
    axes = optimum_against(optima(), new_axes(), title="T", y_label="%", **STYLE)  # type: ignore[arg-type]
    assert lines_of(axes)["batch_norm"] == ([16, 256], [93.0, 94.0])
    assert lines_of(axes)["bare, not trained"] == ([256], [10.0])
    assert lines_of(axes)["batch_norm, not trained"] == ([], [])
    axes.figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "256"]
    assert names_in(axes) == ["batch norm", "bare"]


def test_inks_differ_and_tables_are_checked() -> None:
    assert len({ink.light for ink in INKS.values()}) == 3
    with pytest.raises(ValueError, match="lacks deviation"):
        optimum_against(optima().drop(columns="deviation"), title="T", y_label="%", **STYLE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one row"):
        rate_against(optima().iloc[:0], title="T", **STYLE)  # type: ignore[arg-type]


NETWORK_INKS = {"first": series_ink(0), "second": series_ink(1)}


def rounded(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of every line by its label, rounded."""
    found = {}
    for line in axes.get_lines():
        across, up = (np.asarray(values, dtype=float).tolist() for values in line.get_data())
        found[str(line.get_label())] = [(round(x, 9), round(y, 9)) for x, y in zip(across, up, strict=True)]
    return found


def test_curves_are_the_means_over_replicates_in_percent() -> None:
    epochs = pd.DataFrame(
        [
            {"network": name, "epoch": epoch, "test_accuracy": 0.1 * epoch + shift, "training_accuracy": 0.2 * epoch}
            for name, shifts in (("first", (0.0, 0.1)), ("second", (0.0,)))
            for shift in shifts
            for epoch in (1, 2, 3)
        ]
    )
    axes = accuracy_against_epoch(epochs, series="network", inks=NETWORK_INKS, title="Runs")
    drawn = rounded(axes)
    assert drawn["first, test accuracy"] == [(1, 15), (2, 25), (3, 35)]
    assert drawn["second, test accuracy"] == [(1, 10), (2, 20), (3, 30)]
    assert drawn["first, training accuracy"] == [(1, 20), (2, 40), (3, 60)]
    assert "dashed" in axes.get_xlabel()
    assert names_in(axes) == ["first", "second"]


@settings(deadline=None)  # drawing takes its time on a busy machine
@given(
    values=st.lists(
        st.tuples(st.floats(0, 100), st.one_of(st.just(math.nan), st.floats(0, 10)), st.floats(0, 100)),
        min_size=1,
        max_size=6,
    )
)
def test_every_method_has_its_row(values: list[tuple[float, float, float]]) -> None:
    table = pd.DataFrame(values, columns=["measured", "deviation", "published"])
    table["name"] = [f"method_{place}" for place in range(len(values))]
    upper = beside_published(table, TEST_ERRORS, "measured", "Errors", "percent")
    figure = upper.get_figure()
    assert figure is not None
    for axes, column in zip(figure.axes, (0, 2), strict=True):
        drawn = [
            (float(artist.get_xdata()[0]), artist.get_ydata()[0])
            for artist in axes.get_lines()
            if artist.get_marker() != "|"
        ]
        assert drawn == [(value[column], place) for place, value in enumerate(values)]
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == [f"method {place}" for place in range(len(values))]


L2_INKS = {"one": SCHEME_INKS["fixup"], "two": SCHEME_INKS["skipinit"]}


def differences(beside: str | None = None, **changes: object) -> Axes:
    rows = [
        {"l2": "one", "difference": 1.0, "error": 0.25, "model": "a"},
        {"l2": "two", "difference": -2.0, "error": math.nan, "model": "a"},
        {"l2": "one", "difference": math.nan, "error": math.nan, "model": "b"},
    ]
    table = pd.DataFrame(rows).assign(**changes)
    return DIFFERENCES(table, y="l2", inks=L2_INKS, title="Title", x_label="points", groups="model", beside=beside)


def test_bars_are_two_standard_errors_and_unknown_errors_are_hollow() -> None:
    axes = differences()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["a", "one", "two", "b", "one"]
    drawn = {line.get_label(): line for line in axes.containers}
    assert len(drawn) == 2
    (bars,) = [artist for artist in axes.containers if artist.get_label() == "one"]
    segment = bars.lines[2][0].get_segments()[0]
    assert segment[:, 0].tolist() == [0.5, 1.5]
    assert segment[:, 1].tolist() == [1, 1]
    (hollow,) = [artist for artist in axes.containers if artist.get_label() == "two, hollow"]
    assert hollow.lines[0].get_markerfacecolor() != hollow.lines[0].get_color()
    assert axes.get_ylim() == (4.5, -0.5)


def test_a_line_per_series_through_its_means_and_a_thin_one_per_run() -> None:
    rows = [
        {"method": method, "hash": f"{method}{run}", "epoch": epoch, "bleu": value}
        for method, values in {"one": (1.0, 3.0), "two": (2.0, math.nan)}.items()
        for run in (0, 1)
        for epoch, value in enumerate((values[0], values[1] + run), start=1)
    ]
    axes = lines(pd.DataFrame(rows), x="epoch", y="bleu", by="method", each="hash", inks=L2_INKS, title="Title")
    drawn = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert list(drawn) == ["one", "two"]
    assert np.asarray(drawn["one"].get_ydata()).tolist() == [1.0, 3.5]
    assert np.isnan(drawn["two"].get_ydata()).tolist() == [False, True]
    assert sum(str(line.get_label()) == "_run" for line in axes.lines) == 4
