"""One self-contained HTML page: a finding, figures, tables, and how the numbers were measured."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from matplotlib.axes import Axes

from normless_lab.plots.palette import css_variables
from normless_lab.plots.save import inline_image, svg_text


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
