"""Figures as files, as images in a page, and in words for screen readers."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from normless_lab.plots.palette import css_variables

# A figure takes the width of its place on a page, up to this multiple of its own.
MAGNIFIED = 1.25
_LENGTHS = re.compile(r'\b(?:d|x|y|points|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"(-?\d+\.\d{2})\d+")
_INKS = {ink.light: ink for ink in css_variables().values()}.values()


def save_png(axes: Axes, path: Path, *, dpi: int = 200) -> Path:
    """Write the figure of ``axes`` as PNG at ``dpi`` dots per inch; return the path."""
    FigureCanvasAgg(_figure(axes)).print_figure(path, dpi=dpi, format="png")
    return path


def save_svg(axes: Axes, path: Path) -> Path:
    """Write the figure of ``axes`` as SVG, see `svg_text`; the same figure gives the same file."""
    path.write_text(svg_text(axes), encoding="utf-8")
    return path


def svg_text(axes: Axes) -> str:
    """Return the figure of ``axes`` as the text of an SVG file, with texts as texts and colours as in `on_pages`."""
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "normless"}):
        FigureCanvasSVG(_figure(axes)).print_figure(stream, format="svg", metadata={"Date": None})
    return on_pages(stream.getvalue())


def on_pages(svg: str) -> str:
    """Return the text of an SVG file for light and dark pages.

    On dark pages the colours of `normless_lab.plots.palette` are the dark ones. Programs without media queries show
    the light ones. Lengths are cut to hundredths of a point.
    """
    if "prefers-color-scheme" in svg:
        return svg
    drawn = _LENGTHS.sub(lambda lengths: _LONG_NUMBER.sub(lambda number: number[1], lengths[0]), svg)
    drawn = re.sub(r">\s*\n\s*<", "><", drawn)
    used = [ink for ink in _INKS if f"{ink.light};" in drawn or f'{ink.light}"' in drawn]
    dark = "".join(
        f'[style*="{what}: {ink.light}"]{{{what}:{ink.dark} !important}}'
        for ink in used
        for what in ("fill", "stroke")
    )
    style = (
        f"<style>@media screen and (prefers-color-scheme:dark){{{dark}}}"
        "text{font-family:system-ui,sans-serif !important}</style>"
    )
    return re.sub(r"<svg\b[^>]*>", lambda match: match[0] + style, drawn, count=1)


def inline_image(svg: str, description: str) -> Markup:
    """Return the text of an SVG file as an ``<img>`` element for a page.

    A browser runs and loads nothing from within an image, so the file may come from anywhere. Its colours are those
    of `on_pages`, and the image is `MAGNIFIED` times as wide as the figure if there is room. The description is for
    screen readers.
    """
    drawn = on_pages(svg)
    width = re.search(r'<svg\b[^>]*\bwidth="([\d.]+)pt"', svg)
    room = f"max-width: {MAGNIFIED * float(width[1]):g}pt" if width else ""
    source = f"data:image/svg+xml;base64,{b64encode(drawn.encode()).decode()}"
    return Markup('<img src="{}" alt="{}" style="{}">').format(source, description, room)


def description(axes: Axes) -> str:
    """Return the titles of a figure and the names of its axes and drawn data as sentences."""
    figure = axes.get_figure(root=True)
    every = figure.axes if isinstance(figure, Figure) else [axes]
    overall = figure.get_suptitle() if isinstance(figure, Figure) else ""
    parts = [_words(overall), *(_panel(panel) for panel in every)]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("Expected Axes on a figure, but these Axes were removed from theirs; draw them again.")
    return figure


def _panel(axes: Axes) -> str:
    """Return one panel's title, axis labels and legend in words."""
    title = next(filter(None, (_words(axes.get_title(place)) for place in ("left", "center", "right"))), "")
    across = _words(axes.get_xlabel())
    # `name_axes` writes the name of the vertical axis as a note above it.
    up = _words(axes.get_ylabel()) or next((_words(note.get_text()) for note in axes.texts), "")
    legend = axes.get_legend()
    names = [_words(text.get_text()) for text in legend.get_texts()] if legend is not None else []
    named = " against ".join(filter(None, (up, across)))
    drawn = {str(line.get_label()).rpartition(", ")[2] for line in axes.lines}
    predicted = "lines are predicted, points measured" if {"predicted", "measured"} <= drawn else ""
    return "; ".join(filter(None, (title, named, ", ".join(filter(None, names)), predicted)))


def _words(text: str) -> str:
    return " ".join(text.split())
