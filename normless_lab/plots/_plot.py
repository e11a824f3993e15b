"""Plots as data: a grammar and its arguments; and the plot of each probe's table, from ``plot.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import yaml

from normless_lab.plots._frames import require_columns
from normless_lab.plots._palette import QUIET, ROLE_INKS, SCHEME_INKS, Ink

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
        # The grammars import matplotlib, which a plot is stated without.
        from normless_lab.plots import _line_plots as line_plots, _point_plots as point_plots

        home = line_plots if hasattr(line_plots, self.grammar) else point_plots
        axes: Axes = getattr(home, self.grammar)(table, ax, **arguments)
        return axes


BAR_INKS: Mapping[str, Ink] = {"True": SCHEME_INKS["none"], "False": QUIET}

# The arguments that are not plain data.
_IN_CODE: Mapping[str, Mapping[str, Any]] = {
    "activations": {"named": lambda scheme, _: scheme.partition("(")[0]},
    "channel_gradients": {"prepare": lambda channels: channels.assign(gradient=channels["gradient"].abs())},
    "gammas": {"inks": {name.removeprefix("γ "): ink for name, ink in ROLE_INKS.items()}},
    "logits": {"inks": BAR_INKS},
}
PLOTS: Mapping[str, Plot] = {
    name: Plot(**stated, **_IN_CODE.get(name, {}))
    for name, stated in yaml.safe_load(Path(__file__).with_name("plot.yaml").read_text("utf-8")).items()
}


def figures_of(
    tables: Mapping[str, pd.DataFrame], scheme: str, probes: Mapping[str, object] | None = None
) -> Iterator[tuple[str, str, Axes]]:
    """Draw the tables that have a plot: the name of the table, the title and the axes of each figure.

    Args:
        tables: tables by the name of their probe; tables without a plot, or without rows, are skipped.
        scheme: scheme of the network, which determines the colour.
        probes: by name; one that is not in `PLOTS` may state its own plot as the attribute ``plot``, a `Plot` or a
            dictionary of its arguments.
    """
    for name, table in tables.items():
        stated = PLOTS.get(name) or getattr((probes or {}).get(name), "plot", None)
        if stated is not None and len(table):
            plot = stated if isinstance(stated, Plot) else Plot(**stated)
            yield name, str(plot.arguments.get("title", name)), plot(table.assign(scheme=scheme))
