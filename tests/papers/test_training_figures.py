"""Figures of training runs: curves over epochs, outcomes by rate, numbers beside published ones."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from normless_lab.plots import accuracy_against_epoch, series_ink
from normless_papers.plots import TEST_ERRORS, beside_published

INKS = {"first": series_ink(0), "second": series_ink(1)}


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
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
    axes = accuracy_against_epoch(epochs, series="network", inks=INKS, title="Runs")
    drawn = lines(axes)
    assert drawn["first, test accuracy"] == [(1, 15), (2, 25), (3, 35)]
    assert drawn["second, test accuracy"] == [(1, 10), (2, 20), (3, 30)]
    assert drawn["first, training accuracy"] == [(1, 20), (2, 40), (3, 60)]
    assert "dashed" in axes.get_xlabel()
    texts = [text.get_text() for text in axes.texts]
    assert {"first", "second"} <= set(texts)


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
            (float(one.get_xdata()[0]), one.get_ydata()[0]) for one in axes.get_lines() if one.get_marker() != "|"
        ]
        assert drawn == [(value[column], place) for place, value in enumerate(values)]
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == [f"method {place}" for place in range(len(values))]
