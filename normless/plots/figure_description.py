"""What a figure shows, in words, for who cannot see it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure


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
