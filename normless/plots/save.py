"""Figures written to files, as SVG inside a page, and described in words for screen readers."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from normless.plots.inline import inline_svg_text


def save_png(axes: Axes, path: Path, *, dpi: int = 200) -> Path:
    """Write the figure of ``axes`` as PNG at ``dpi`` dots per inch; returns the path."""
    FigureCanvasAgg(_figure(axes)).print_figure(path, dpi=dpi, format="png")
    return path


def save_svg(axes: Axes, path: Path) -> Path:
    """Write the figure of ``axes`` as SVG with its text as text; the same figure gives the same file."""
    path.write_text(_svg(axes), encoding="utf-8")
    return path


def inline_svg(axes: Axes, *, name: str, description: str) -> str:
    """The figure of ``axes`` as an ``<svg>`` element for a page; see `normless.plots.inline.inline_svg_text`."""
    return inline_svg_text(_svg(axes), name=name, description=description)


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
    """The titles of a figure, the names of its axes and those of what is drawn, as sentences."""
    figure = axes.get_figure(root=True)
    every = figure.axes if isinstance(figure, Figure) else [axes]
    overall = figure.get_suptitle() if isinstance(figure, Figure) else ""
    parts = [_words(overall), *(_panel(one) for one in every)]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def _panel(axes: Axes) -> str:
    """One panel: its title, what is up and across, and the names in its legend."""
    title = next(filter(None, (_words(axes.get_title(place)) for place in ("left", "center", "right"))), "")
    across = _words(axes.get_xlabel())
    # `name_axes` writes the upright name as a note above the axis.
    up = _words(axes.get_ylabel()) or next((_words(note.get_text()) for note in axes.texts), "")
    legend = axes.get_legend()
    names = [_words(text.get_text()) for text in legend.get_texts()] if legend is not None else []
    named = " against ".join(filter(None, (up, across)))
    return "; ".join(filter(None, (title, named, ", ".join(filter(None, names)))))


def _words(text: str) -> str:
    return " ".join(text.split())
