"""A figure's SVG inside a page: own ids, the page's colours, nothing active, the same picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from normless.plots.axes import name_axes, new_axes
from normless.plots.palette import TEXT, scheme_ink
from normless.plots.save import description, inline_svg_text

HOSTILE = """<?xml version="1.0"?><!-- by hand -->
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" height="9pt"
 viewBox="0 0 9 9" onload="steal()">
<metadata>made</metadata><script>steal()</script>
<defs><path id="m1" d="M 0.123456 -2.000001 L 10.5 3"/>
<clipPath id="c"><rect x="1.23456" width="2"/></clipPath></defs>
<g id="g" onclick="steal()"><foreignObject>x</foreignObject><a xlink:href="javascript:steal()"><use xlink:href="#m1"
 x="1.000049" transform="translate(1.23456 2.5) rotate(-90)" style="fill: COLOUR; clip-path: url(#c)"/></a></g>
<g transform="matrix(0.00123 0 0 1 2.3456 0)"><text>a  b<tspan> c</tspan></text></g></svg>"""


@pytest.fixture
def inline() -> str:
    return inline_svg_text(HOSTILE.replace("COLOUR", TEXT.light.upper()), name="one", description='A "figure" & more')


def test_nothing_active_is_left(inline: str) -> None:
    assert "steal" not in inline
    assert not re.search(r"\son\w+=", inline)
    assert "made" not in inline
    assert "by hand" not in inline


def test_ids_are_its_own_and_followed(inline: str) -> None:
    assert 'id="one-m1"' in inline
    assert 'href="#one-m1"' in inline
    assert "url(#one-c)" in inline


def test_colours_are_the_pages(inline: str) -> None:
    assert f"fill: var(--text, {TEXT.light})" in inline


def test_lengths_are_rounded_and_scales_are_not(inline: str) -> None:
    assert 'd="M 0.12 -2 L 10.5 3"' in inline
    assert 'transform="translate(1.23 2.5) rotate(-90)"' in inline
    assert "matrix(0.00123 0 0 1 2.3456 0)" in inline


def test_it_says_what_it_is_and_keeps_its_text(inline: str) -> None:
    root = ElementTree.fromstring(inline)
    assert (root.tag, root.get("role"), root.get("aria-label")) == ("svg", "img", 'A "figure" & more')
    assert root.get("width") is None
    assert root.get("style") == "max-width: 11.25pt"
    assert root.get("viewBox") == "0 0 9 9"
    assert "".join(root.itertext()) == "a  b c"


def test_a_description_names_what_is_drawn() -> None:
    axes = new_axes()
    name_axes(axes, title="Growth", across="block", up="variance")
    axes.plot([1, 2], label="fixup", color=scheme_ink("fixup").light)
    axes.legend()
    assert description(axes) == "Growth; variance against block; fixup."
    figure = axes.figure
    figure.suptitle("Two panels")
    other = figure.add_subplot(2, 1, 2)
    other.set_ylabel("loss")
    other.set_xlabel("step")
    assert description(axes) == "Two panels. Growth; variance against block; fixup. loss against step."
    assert description(new_axes()) == ""
