"""The plots of batch statistics, correlations, the stream and γ's steps draw their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from normless_lab.plots import PLOTS
from normless_papers.gamma.analysed_networks import draw_stream


def blocks_table(names: list[str], count: int = 30) -> pd.DataFrame:
    block = np.arange(1, count + 1)
    table = pd.DataFrame({"block": block, "name": [f"blocks.{index}" for index in block], "equation": 11})
    for offset, name in enumerate(names):
        table[name] = 0.01 * block * (offset + 1)
        table[f"predicted_{name}"] = table[name] * 1.01
    return table


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


@pytest.mark.parametrize("probe", ["signal", "covariance"])
def test_measured_points_and_predicted_lines_are_the_table(probe: str) -> None:
    draw, names = PLOTS[probe], PLOTS[probe].arguments["measured"]
    table = blocks_table(list(names))
    axes = draw(table.sample(frac=1, random_state=0))
    drawn = lines(axes)
    for column, name in names.items():
        assert drawn[f"{name}, measured"] == (list(table["block"]), list(table[column]))
        np.testing.assert_array_equal(drawn[f"{name}, predicted"][1], table[f"predicted_{column}"])
    assert set(names.values()) <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("expected", [True, False])
def test_the_stream_and_its_resets(expected: bool) -> None:
    table = blocks_table(["stream_second_moment"], 8)
    table.loc[[0, 4], "equation"] = [15, 17]
    table["expected_stream_second_moment"] = table["stream_second_moment"] * 2 if expected else np.nan
    axes = draw_stream(table)
    drawn = [line for line in axes.get_lines() if line.get_label() == "_mark"]
    assert [line.get_xdata()[0] for line in drawn] == [1, 5]
    assert lines(axes)["γ alone, measured"][1] == list(table["stream_second_moment"])
    assert ("all weights" in {text.get_text() for text in axes.texts}) is expected
    assert [label.get_text() for label in axes.get_xticklabels()] == list(table["name"])
    many = draw_stream(
        pd.concat([table, table.assign(block=table["block"] + 8), table.assign(block=table["block"] + 16)])
    )
    assert len(many.get_xticklabels()) == 6
