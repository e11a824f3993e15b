"""Figures written to files, and as SVG inside a page where they follow its colours."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from normless.report.palette import css_variables

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


def save_png(axes: Axes, path: Path, *, dpi: int = 200) -> Path:
    """Write the figure of ``axes`` as PNG at ``dpi`` dots per inch; returns the path."""
    FigureCanvasAgg(_figure(axes)).print_figure(path, dpi=dpi, format="png")
    return path


def save_svg(axes: Axes, path: Path) -> Path:
    """Write the figure of ``axes`` as SVG with its text as text; the same figure gives the same file."""
    path.write_text(_svg(axes), encoding="utf-8")
    return path


def inline_svg(axes: Axes, *, name: str, description: str) -> str:
    """The figure of ``axes`` as an ``<svg>`` element for a page.

    Colours of `normless.report.palette` become style-sheet variables with the light colour behind them, so
    that the figure turns dark with the page; ids carry ``name``, so that two figures of one page do not collide;
    the ``description`` is what a screen reader says.
    """
    root = ElementTree.fromstring(_svg(axes))
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        for attribute, value in element.attrib.items():
            element.set(attribute, _follow_page(_own_ids(attribute, value, name)))
    del root.attrib["width"], root.attrib["height"]
    root.set("role", "img")
    root.set("aria-label", description)
    return ElementTree.tostring(root, encoding="unicode")


def _svg(axes: Axes) -> str:
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "normless"}):
        FigureCanvasSVG(_figure(axes)).print_figure(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("Expected Axes on a figure, but these Axes were removed from theirs; draw them again.")
    return figure


def _own_ids(attribute: str, value: str, name: str) -> str:
    if attribute == "id":
        return f"{name}-{value}"
    if attribute == "href":
        return re.sub(r"^#", f"#{name}-", value)
    return re.sub(r"url\(#", f"url(#{name}-", value)


def _follow_page(value: str) -> str:
    for variable, ink in css_variables().items():
        value = re.sub(re.escape(ink.light), f"var(--{variable}, {ink.light})", value, flags=re.IGNORECASE)
    return value
