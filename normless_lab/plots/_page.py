"""Figures as files and images, and self-contained HTML pages of figures, tables and how the numbers were measured."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as MatplotlibFigure

from normless_lab.plots._palette import css_variables

# A figure takes the width of its place on a page, up to this multiple of its own.
MAGNIFIED = 1.25
_LENGTHS = re.compile(r'\b(?:d|x|y|points|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"(-?\d+\.\d{2})\d+")
_INKS = {ink.light: ink for ink in css_variables().values()}.values()


def save_png(axes: Axes, path: Path, *, dpi: int = 200) -> Path:
    """Write the figure of ``axes`` as PNG at ``dpi`` dots per inch; return the path."""
    FigureCanvasAgg(_figure_of(axes)).print_figure(path, dpi=dpi, format="png")
    return path


def save_svg(axes: Axes, path: Path) -> Path:
    """Write the figure of ``axes`` as SVG, see `svg_text`; the same figure gives the same file."""
    path.write_text(svg_text(axes), encoding="utf-8")
    return path


def svg_text(axes: Axes) -> str:
    """Return the figure of ``axes`` as the text of an SVG file, with texts as texts and colours as in `on_pages`."""
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "normless"}):
        FigureCanvasSVG(_figure_of(axes)).print_figure(stream, format="svg", metadata={"Date": None})
    return on_pages(stream.getvalue())


def on_pages(svg: str) -> str:
    """Return the text of an SVG file for light and dark pages.

    On dark pages the colours of `normless_lab.plots._palette` are the dark ones. Programs without media queries show
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
    every = figure.axes if isinstance(figure, MatplotlibFigure) else [axes]
    overall = figure.get_suptitle() if isinstance(figure, MatplotlibFigure) else ""
    parts = [_words(overall), *(_panel(panel) for panel in every)]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def _figure_of(axes: Axes) -> MatplotlibFigure:
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


@dataclass(frozen=True)
class Figure:
    """A drawn figure, and the caption under it, which screen readers get too."""

    axes: Axes
    caption: str


@dataclass(frozen=True)
class Column:
    """The heading of a table's column; numbers stand at the right, words at the left."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of formatted text; the first ``row_headers`` cells of a row name it.

    Raises:
        ValueError: the number of cells in a row differs from the number of columns.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    row_headers: int = 1

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Expected {len(self.columns)} cells in every row of the table {self.caption!r}, "
                    f"got {len(row)}: {', '.join(row)}."
                )

    @property
    def grouped(self) -> bool:
        """Whether some neighbouring rows have the same first cell, so that lines between groups help the reader."""
        return any(former[0] == later[0] for former, later in pairwise(self.rows))


@dataclass(frozen=True)
class Page:
    """The contents of a page, in order.

    The finding is the result, in one or two sentences. The caution states the limits of the numbers. The facts, as
    (name, value), describe the measurement: seeds, budget, data set, versions, machine.
    """

    title: str
    finding: str
    caution: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, str]] = ()


def render_page(page: Page) -> str:
    """Return the page as one HTML document without external resources."""
    figures = [(inline_image(svg_text(figure.axes), figure.caption), figure.caption) for figure in page.figures]
    return template("page.html.j2").render(page=page, figures=figures, colours=css_variables())


def template(name: str, package: str = str(__package__)) -> Template:
    """Return a template of a package, which may use those of this one; values are escaped, unknown names an error."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(str(__package__))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = lambda text: b64encode(sha256(text.encode()).digest()).decode()
    return environment.get_template(name)


def write_page(page: Page, path: Path) -> Path:
    """Write the page as UTF-8; returns the path."""
    path.write_text(render_page(page), encoding="utf-8")
    return path
