"""Figures written to files, as SVG inside a page, and described in words for screen readers."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from normless_lab.plots.palette import css_variables
from normless_lab.plots.safe_svg import safe_svg

# Lengths are in points, of which a hundredth cannot be seen; on a path of hundreds of corners a tenth cannot.
DECIMALS = 2
_MANY_CORNERS = 1000
# A figure takes the width that a page gives it, up to so many times its own.
MAGNIFIED = 1.25
_POINTS = re.compile(r"([\d.]+)pt")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}(?![\de])")
# In a style sheet these end neither a rule nor the sheet.
_PLAIN_STYLE = re.compile(r'style="([\w\s:;.,%#()+-]+)"')
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_VARIABLES = {ink.light.lower(): f"var(--{name}, {ink.light})" for name, ink in css_variables().items()}
# What a path or a list of fonts reads the same without.
_SPACES = re.compile(r"\s+(?=[A-Za-z]|$)|(?<=[A-Za-z])\s+")
_NO_TURN = re.compile(r"^rotate\(-?0 [\d. -]*\)$")
_QUOTED_FONT = re.compile(r"'([A-Za-z][A-Za-z ]*)'")
_REFERENCE = re.compile(r"^#(.+)$|url\(#([^)]+)\)")
_GEOMETRY = {"d", "points", "x", "y", "width", "height", "cx", "cy"}


def save_png(axes: Axes, path: Path, *, dpi: int = 200) -> Path:
    """Write the figure of ``axes`` as PNG at ``dpi`` dots per inch; return the path."""
    FigureCanvasAgg(_figure(axes)).print_figure(path, dpi=dpi, format="png")
    return path


def save_svg(axes: Axes, path: Path) -> Path:
    """Write the figure of ``axes`` as SVG with its text as text; the same figure gives the same file."""
    path.write_text(_svg(axes), encoding="utf-8")
    return path


def inline_svg(axes: Axes, *, name: str, description: str) -> str:
    """Return the figure of ``axes`` as an ``<svg>`` element for a page; see `inline_svg_text`."""
    return inline_svg_text(_svg(axes), name=name, description=description)


def inline_svg_text(svg: str, *, name: str, description: str) -> str:
    """Return the text of an SVG file as an ``<svg>`` element for a page.

    Colours of `normless_lab.plots.palette` become style-sheet variables, the light colour as fallback, for dark
    pages; ids that the drawing refers to carry ``name``, so that two figures of one page do not collide, and others
    are left out; the ``description`` is for screen readers. Only what draws is left (see `safe_svg`), lengths are
    rounded to hundredths of a point, and the figure is as wide as the page has room, up to `MAGNIFIED` times its own
    width. A ValueError if the text is not an SVG file.
    """
    root = safe_svg(svg)
    own = _own_ids(root, name)
    for element in root.iter():
        if element.attrib.get("id") not in own:
            element.attrib.pop("id", None)
        for attribute, value in list(element.attrib.items()):
            text = _with_ids(attribute, _shortened(attribute, value), own)
            if not text:
                del element.attrib[attribute]
                continue
            element.set(attribute, _COLOUR.sub(lambda match: _VARIABLES.get(match[0].lower(), match[0]), text))
        # Line feeds and indentation between elements.
        if element.tag not in ("text", "tspan", "style") and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    width = _POINTS.fullmatch(root.attrib.pop("width", ""))
    root.attrib.pop("height", None)
    if width:
        root.set("style", f"max-width: {MAGNIFIED * float(width[1]):g}pt")
    root.set("role", "img")
    root.set("aria-label", description)
    return ElementTree.tostring(root, encoding="unicode")


def with_shared_styles(svgs: Sequence[str]) -> tuple[list[str], str]:
    """The figures of one page, with classes for inline styles that come more than once, and the style sheet of these.

    A style with a quote, a brace or a slash stays where it is: in a style sheet it could reach beyond its rule.
    """
    counts = Counter(style for svg in svgs for style in _PLAIN_STYLE.findall(svg))
    names = {style: f"s{place}" for place, (style, count) in enumerate(counts.most_common()) if count > 1}

    def shared(match: re.Match[str]) -> str:
        return f'class="{names[match[1]]}"' if match[1] in names else match[0]

    sheet = "\n".join(f"svg.{name}, svg .{name} {{ {style} }}" for style, name in names.items())
    return [_PLAIN_STYLE.sub(shared, svg) for svg in svgs], sheet


def _shortened(attribute: str, value: str) -> str:
    """Return the value of an attribute with rounded lengths and without redundant parts."""
    if attribute == "style":
        return _QUOTED_FONT.sub(r"\1", value)
    if attribute in _GEOMETRY or (attribute == "transform" and "matrix" not in value and "scale" not in value):
        decimals = DECIMALS - (len(value) > _MANY_CORNERS)
        value = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.{decimals}f}".rstrip("0").rstrip("."), value)
    return _SPACES.sub("", value) if attribute == "d" else _NO_TURN.sub("", value)


def _own_ids(root: ElementTree.Element, name: str) -> dict[str, str]:
    """Return the referenced ids with their names on the page."""
    known = dict.fromkeys(element.get("id", "") for element in root.iter())
    values = (value for element in root.iter() for value in element.attrib.values())
    referred = dict.fromkeys(quoted or plain for value in values for quoted, plain in _REFERENCE.findall(value))
    return {reference: f"{name}-{place}" for place, reference in enumerate(referred) if reference in known}


def _with_ids(attribute: str, value: str, own: Mapping[str, str]) -> str:
    if attribute == "id":
        return own[value]
    if attribute == "href":
        return f"#{own.get(value[1:], '')}" if value.startswith("#") else value
    return re.sub(r"url\(#([^)]+)\)", lambda match: f"url(#{own.get(match[1], '')})", value)


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


def description(axes: Axes) -> str:
    """Return the titles of a figure and the names of its axes and drawn data as sentences."""
    figure = axes.get_figure(root=True)
    every = figure.axes if isinstance(figure, Figure) else [axes]
    overall = figure.get_suptitle() if isinstance(figure, Figure) else ""
    parts = [_words(overall), *(_panel(panel) for panel in every)]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def _panel(axes: Axes) -> str:
    """Return one panel's title, axis labels and legend in words."""
    title = next(filter(None, (_words(axes.get_title(place)) for place in ("left", "center", "right"))), "")
    across = _words(axes.get_xlabel())
    # `name_axes` writes the upright name as a note above the axis.
    up = _words(axes.get_ylabel()) or next((_words(note.get_text()) for note in axes.texts), "")
    legend = axes.get_legend()
    names = [_words(text.get_text()) for text in legend.get_texts()] if legend is not None else []
    named = " against ".join(filter(None, (up, across)))
    drawn = {str(line.get_label()).rpartition(", ")[2] for line in axes.lines}
    predicted = "lines are predicted, points measured" if {"predicted", "measured"} <= drawn else ""
    return "; ".join(filter(None, (title, named, ", ".join(filter(None, names)), predicted)))


def _words(text: str) -> str:
    return " ".join(text.split())
