"""Figures of growth through the blocks and of agreement with formulas, and several plots on one figure."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from normless.plots.agreement import agreement_of_quantities
from normless.plots.axes import new_panels
from normless.plots.probes.gradient_bounds import gradient_bounds_against_block
from normless.plots.probes.growth import growth_against_block
from normless.plots.save import inline_svg

GROWTH = pd.DataFrame({"scheme": "none", "block": range(5), "growth": [1, 2, 4, math.inf, 0], "law": 1.0})


def test_growth_has_its_law_where_there_is_one() -> None:
    axes = growth_against_block(GROWTH)
    assert axes.get_xlabel() == "block; dashed: the law"
    measured = axes.lines[1].get_ydata()
    assert measured[2] == 4  # type: ignore[index]
    assert math.isnan(measured[3])  # type: ignore[index]
    assert growth_against_block(GROWTH.assign(law=math.nan)).get_xlabel() == "block"
    with pytest.raises(ValueError, match="lacks law"):
        growth_against_block(GROWTH.drop(columns="law"))


def test_a_level_line_has_a_decade_on_both_sides() -> None:
    low, high = growth_against_block(GROWTH.assign(growth=1.0)).get_ylim()
    assert low < 0.11
    assert high > 9


def test_agreements_within_their_tolerance_are_filled() -> None:
    table = pd.DataFrame({"quantity": ["one", "two"], "deviation": [0.0, 0.1], "tolerance": [0.0, 0.01]})
    axes = agreement_of_quantities(table)
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines["within"].get_xdata()) == 1  # type: ignore[arg-type]
    assert lines["beyond"].get_markerfacecolor() == "none"
    with pytest.raises(ValueError, match="at least one row"):
        agreement_of_quantities(table[:0])


def test_panels_are_on_one_figure() -> None:
    panels = new_panels(1, 3, width=4.9, height=3.2)
    assert len({id(one.figure) for one in panels}) == 1
    growth_against_block(GROWTH, panels[1])
    assert inline_svg(panels[0], name="panels", description="three plots").count("law") >= 1


def test_bounds_of_something_else_than_blocks() -> None:
    bounds = pd.DataFrame({"block": [1, 2], "gradient_norm": [2.0, 3.0], "bound": [1.0, -1.0]})
    assert gradient_bounds_against_block(bounds).get_xlabel() == "block"
    assert gradient_bounds_against_block(bounds, across="set", by="the set").get_xlabel() == "set"
