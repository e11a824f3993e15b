"""What is drawn on axes, for the tests of figures."""

from __future__ import annotations

from matplotlib.axes import Axes


def lines_of(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The lines, and the points of bars, by label: their x and y."""
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    lines |= {str(container.get_label()): container[0] for container in axes.containers if container[0]}
    return {name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in lines.items()}


def names_in(axes: Axes) -> list[str]:
    """The names in the legend."""
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend is not None else []
