"""The plots of growth through the blocks and of agreement with formulas, and several plots on one figure."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from normless_lab.plots import inline_svg, new_panels
from normless_lab.plots.palette import PAPER
from normless_papers.fixup.bounds import BOUNDS
from normless_papers.plots import AGREEMENT, GROWTH

GROWN = pd.DataFrame({"scheme": "none", "block": range(5), "growth": [1, 2, 4, math.inf, 0], "law": 1.0})


def test_growth_has_its_law_where_there_is_one() -> None:
    axes = GROWTH(GROWN)
    law, measured = (line.get_ydata() for line in axes.lines)
    assert list(law) == [1.0] * 5  # type: ignore[arg-type]
    assert measured[2] == 4  # type: ignore[index]
    assert math.isnan(measured[3])  # type: ignore[index]
    assert "none" in {text.get_text() for text in GROWTH(GROWN.assign(law=math.nan)).texts}
    with pytest.raises(ValueError, match="lacks law"):
        GROWTH(GROWN.drop(columns="law"))


def test_a_level_line_has_a_decade_on_both_sides() -> None:
    low, high = GROWTH(GROWN.assign(growth=1.0)).get_ylim()
    assert low < 0.11
    assert high > 9


def test_agreements_within_their_tolerance_are_filled() -> None:
    table = pd.DataFrame({"quantity": ["one", "two"], "deviation": [0.0, 0.1], "tolerance": [0.0, 0.01]})
    axes = AGREEMENT(table)
    within, beyond = (container.lines[0] for container in axes.containers)  # type: ignore[attr-defined]
    assert within.get_markerfacecolor() == within.get_color()
    assert beyond.get_markerfacecolor() == PAPER.light
    assert [line.get_xdata() for line in axes.lines if line.get_marker() == "|"] == [[1e-18], [0.01]]
    with pytest.raises(ValueError, match="at least one row"):
        AGREEMENT(table[:0])


def test_panels_are_on_one_figure() -> None:
    panels = new_panels(1, 3, width=4.9, height=3.2)
    assert len({id(one.figure) for one in panels}) == 1
    GROWTH(GROWN, panels[1])
    assert inline_svg(panels[0], name="panels", description="three plots").count("law") >= 1


def test_bounds_of_something_else_than_blocks() -> None:
    bounds = pd.DataFrame({"block": [1, 2], "gradient_norm": [2.0, 3.0], "bound": [1.0, -1.0]})
    assert BOUNDS(bounds).get_xlabel() == "block"
    assert BOUNDS(bounds, x_label="set").get_xlabel() == "set"
