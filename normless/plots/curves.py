"""How accuracies go with the epochs of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import Ink
from normless.plots.tables import require_columns

Dashes = str | tuple[float, tuple[float, ...]]

_DASHES: Mapping[str, Dashes] = {"test_accuracy": "solid", "training_accuracy": (0, (3, 2))}
# Fewer points than these are marked; one alone would be no line at all.
_MARKED = 12


def accuracy_against_epoch(
    epochs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    inks: Mapping[str, Ink],
    title: str,
    columns: Sequence[str] = ("test_accuracy", "training_accuracy"),
) -> Axes:
    """Draw accuracies against the epoch, a named line per series: test solid, training dashed (solid if alone).

    A line is the mean over replicates, the band around it one sample standard deviation to either side. Replicates
    that diverged are in it as long as they have epochs.

    Args:
        epochs: a row per run and epoch: the column `series`, ``epoch`` and the accuracies (0..1).
        ax: where to draw; a new figure without it.
        series: the column of the names of the lines.
        inks: of each name.
        title: of the figure.
        columns: which of ``test_accuracy`` and ``training_accuracy`` to draw; names stand at the first one's lines.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(epochs, (series, "epoch", *columns), "Accuracy against epoch")
    axes = new_axes() if ax is None else style_axes(ax)
    labels = []
    for name, rows in epochs.groupby(series, sort=False):
        for place, column in enumerate(columns):
            values = 100 * rows.groupby("epoch")[column].mean()
            dashes = _DASHES[column] if len(columns) > 1 else "solid"
            _line(axes, rows, column, inks[str(name)], f"{name}, {column.replace('_', ' ')}", dashes)
            if place == 0:
                ink = inks[str(name)]
                labels.append(EndLabel(str(name), float(values.index[-1]), float(values.iloc[-1]), ink.light))
    axes.set_ylim(0, 100)
    axes.set_xlim(0 if epochs["epoch"].max() > _MARKED else 0.5, epochs["epoch"].max() * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    styles = [f"{_IN_WORDS[column]}: {'solid' if column == 'test_accuracy' else 'dashed'}" for column in columns]
    across = "epoch" if len(columns) == 1 else f"epoch ({'; '.join(styles)})"
    up = f"{_IN_WORDS[columns[0]]} accuracy (%)" if len(columns) == 1 else "accuracy (%)"
    name_axes(axes, title=title, across=across, up=up)
    label_ends(axes, labels)
    return axes


_IN_WORDS = {"test_accuracy": "test", "training_accuracy": "training"}


def _line(axes: Axes, rows: pd.DataFrame, column: str, ink: Ink, label: str, dashes: Dashes) -> None:
    """One line with its band."""
    by_epoch = 100 * rows.groupby("epoch")[column].agg(["mean", "std"])
    epoch, mean = by_epoch.index.to_numpy(float), by_epoch["mean"].to_numpy(float)
    spread = np.nan_to_num(by_epoch["std"].to_numpy(float))
    axes.fill_between(epoch, mean - spread, mean + spread, color=ink.light, alpha=0.16, linewidth=0, zorder=2)
    axes.plot(
        epoch,
        mean,
        color=ink.light,
        linewidth=1.8,
        linestyle=dashes,
        marker=ink.marker if len(epoch) <= _MARKED else "none",
        markersize=5,
        label=label,
        zorder=3,
    )
