"""A plot as data: a grammar and its arguments, by which any table with these columns can be drawn."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from normless_lab.plots.frames import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Grammar: TypeAlias = Literal["lines", "measured_on_predicted", "points", "heat_map", "histogram"]


class Plot:
    """How a table is drawn. Stated without matplotlib, so that a probe can have one as its attribute ``plot``.

    >>> Plot("lines", x="layer", y="norm", by="scheme", log="y", title="Norms", x_label="layer", y_label="‖w‖")

    Args:
        grammar: the name of a function of `normless_lab.plots`, and its arguments by keyword.
        prepare: function from the measured table to the table that the grammar draws.
    """

    def __init__(
        self,
        grammar: Grammar,
        prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
        **arguments: Any,
    ) -> None:
        self.grammar: Grammar = grammar
        self.prepare = prepare
        self.arguments = arguments

    def __call__(self, table: pd.DataFrame, ax: Axes | None = None, **changes: Any) -> Axes:
        """Draw a table on `ax` or on a new figure, with some arguments changed.

        Raises:
            ValueError: the table lacks a column or is empty.
        """
        arguments = self.arguments | changes
        if self.prepare is not None:
            title = str(arguments.get("title", "The plot"))
            require_columns(table, (), title)
            try:
                table = self.prepare(table)
            except KeyError as error:
                require_columns(table, (str(error.args[0]),), title)
                raise
        module = import_module(f"{__package__}.grammars.{self.grammar}")
        axes: Axes = getattr(module, self.grammar)(table, ax, **arguments)
        return axes
