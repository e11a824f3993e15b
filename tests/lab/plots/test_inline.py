"""A figure's SVG inside a page: own ids, the page's colours, nothing active, the same picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from figures_of_every_kind import every_kind

from normless_lab.plots.palette import TEXT
from normless_lab.plots.save import _svg, inline_svg_text

HOSTILE = """<?xml version="1.0"?><!-- by hand -->
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" height="9pt"
 viewBox="0 0 9 9" onload="steal()">
<metadata>made</metadata><script>steal()</script>
<defs><path id="m1" d="M 0.123456 -2.000001 L 10.5 3"/>
<clipPath id="c"><rect x="1.23456" width="2"/></clipPath></defs>
<g id="g" onclick="steal()"><foreignObject>x</foreignObject><a xlink:href="javascript:steal()"><use xlink:href="#m1"
 x="1.000049" transform="translate(1.23456 2.5) rotate(-90)" style="fill: COLOUR; clip-path: url(#c)"/></a></g>
<g transform="matrix(0.00123 0 0 1 2.3456 0)"><text>a  b<tspan> c</tspan></text></g></svg>"""


# What runs or loads in a browser, as the content of an SVG file; `steal` or `evil` in what is left is a way in.
WAYS_IN = [
    "<SCRIPT>steal()</SCRIPT>",
    "<ScRiPt xlink:href='http://evil/x.js'/>",
    "<h:script xmlns:h='http://www.w3.org/1999/xhtml'>steal()</h:script>",
    "<iframe srcdoc='&lt;script&gt;steal()&lt;/script&gt;'/>",
    "<h:iframe xmlns:h='http://www.w3.org/1999/xhtml' srcdoc='&lt;script&gt;steal()&lt;/script&gt;'/>",
    "<image href='http://evil/x.png'/>",
    "<image xlink:href='https://evil/x.png'/>",
    "<image href='data:image/svg+xml;base64,c3RlYWwoKQ==' id='evil'/>",
    "<image href='//evil/x.png' onerror='steal()'/>",
    "<use xlink:href='http://evil/x.svg#g'/>",
    "<use href='data:image/svg+xml,evil'/>",
    "<a href='JavaScript:steal()'><text>t</text></a>",
    "<a xlink:href=' java&#9;script:steal()'><text>t</text></a>",
    "<animate attributeName='href' values='javascript:steal()'/>",
    "<set attributeName='onmouseover' to='steal()'/>",
    "<rect OnClick='steal()' onfocus='steal()' tabindex='0'/>",
    "<style>@import url(http://evil/x.css);</style>",
    "<style>*{stroke-linejoin: round; stroke-linecap: butt} .badge{display: none} /* evil */</style>",
    "<path style='fill: url(http://evil/x.svg#p)'/>",
    "<path style='background: url(//evil/x.png); fill: u\\72l(//evil)'/>",
    "<path fill='url(http://evil/x)' clip-path='url(//evil/x#c)' filter='url(//evil/f)' mask='url(//evil/m)'/>",
    "<g style='position: fixed; inset: 0' class='evil'><rect width='9' height='9'/></g>",
    "<foreignObject><h:img xmlns:h='http://www.w3.org/1999/xhtml' src='http://evil/x.png'/></foreignObject>",
    "<feImage href='http://evil/x.png'/>",
    "<desc><![CDATA[<script>steal()</script>]]></desc>",
    "<title><h:base xmlns:h='http://www.w3.org/1999/xhtml' href='http://evil/'/></title>",
    "<?xml-stylesheet href='http://evil/x.css'?>",
    "<!-- evil --><text><h:style xmlns:h='http://www.w3.org/1999/xhtml'>evil</h:style></text>",
]


@pytest.mark.parametrize("content", WAYS_IN)
def test_only_what_draws_is_left(content: str) -> None:
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    left = inline_svg_text(f"{head}<g id='own'>{content}<path d='M 0 0'/></g></svg>", name="one", description="d")
    assert not re.search("steal|evil|http|//|position|tabindex", left.replace("one-evil", ""))
    assert '<path d="M0 0" />' in left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%PDF-1.7", "that is not XML"),
        ("<svg><g></svg>", "that is not XML"),
        ("<html><svg/></html>", "XML whose first element is html"),
        ("<svg>" + "<g>" * 5000 + "</g>" * 5000 + "</svg>", "nested more than 100 deep"),
    ],
)
def test_what_is_no_drawing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"Expected the text of an SVG file, got .*{said}"):
        inline_svg_text(text, name="n", description="d")


def test_whatever_matplotlib_draws_stays() -> None:
    written = _svg(every_kind())
    was, now = (
        ElementTree.fromstring(written),
        ElementTree.fromstring(inline_svg_text(written, name="", description="")),
    )
    was.remove(was[0])
    assert was.attrib.pop("width")
    assert was.attrib.pop("height")
    for one, other in zip(was.iter(), now.iter(), strict=True):
        names = {name.rpartition("}")[2] for name in one.attrib}
        assert one.tag.rpartition("}")[2] == other.tag
        kept = {name for name in names - {"type", "id"} if not (one.get(name) or "").startswith("rotate(-0 ")}
        assert kept == other.attrib.keys() - {"role", "aria-label", "id"} - ({"style"} if one is was else set())
        assert len(one.get("style", "").split(";")) == len(other.get("style", "").split(";")) or one is was
        assert (one.text or "").strip() == (other.text or "").strip()


@pytest.fixture
def inline() -> str:
    return inline_svg_text(HOSTILE.replace("COLOUR", TEXT.light.upper()), name="one", description='A "figure" & more')


def test_nothing_active_is_left(inline: str) -> None:
    assert "steal" not in inline
    assert not re.search(r"\son\w+=", inline)
    assert "made" not in inline
    assert "by hand" not in inline


def test_ids_are_its_own_and_followed(inline: str) -> None:
    root = ElementTree.fromstring(inline)
    ids = {str(one.get("id")): one.tag for one in root.iter() if one.get("id")}
    assert set(ids.values()) == {"path", "clipPath"}
    assert all(name.startswith("one-") for name in ids)
    followed = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', inline)
    assert {one or other for one, other in followed} == set(ids)
