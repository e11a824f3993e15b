"""Which runs a sweep still needs: its grid's, and those beyond an end of the grid that turned out best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pandas as pd

from normless.sweeps.optimum import optima
from normless.sweeps.sweep import Labels, Point, Sweep


def extended(
    sweep: Sweep, tried: Mapping[Labels, Iterable[float]], edges: Mapping[Labels, Iterable[str]]
) -> dict[Labels, tuple[float, ...]]:
    """The learning rates to try next, of each combination that needs some.

    Args:
        sweep: with the grid that is extended.
        tried: of each combination, the rates tried so far.
        edges: of each combination, where its optima lie: `lowest`, `highest` or empty, one per metric.
    """
    found = {
        labels: sweep.rates_of(labels).beyond(tuple(tried[labels]), tuple(edges.get(labels, ()))) for labels in tried
    }
    return {labels: rates for labels, rates in found.items() if rates}


def further_points(sweep: Sweep, runs: pd.DataFrame, metrics: Sequence[str]) -> tuple[Point, ...]:
    """The runs that extend the grid where the optimum of some metric lies at its end; none when it is done.

    Asked for again with these runs in the table, until there are none.

    Args:
        sweep: that was run.
        runs: its table of runs so far, those of earlier extensions among them.
        metrics: whose optima are wanted, each on its own.
    """
    axes = list(sweep.axes)
    tried: dict[Labels, set[float]] = {labels: set() for labels in sweep.combinations}
    for *labels, rate in runs[[*axes, "rate"]].drop_duplicates().itertuples(index=False, name=None):
        tried[tuple(labels)].add(float(rate))
    edges: dict[Labels, set[str]] = {labels: set() for labels in tried}
    for metric in metrics:
        table = optima(runs, axes=axes, metric=metric, best=sweep.best)
        for *labels, edge in table[[*axes, "edge"]].itertuples(index=False, name=None):
            edges[cast(Labels, tuple(labels))].add(str(edge))
    wanted = extended(sweep, {labels: rates for labels, rates in tried.items() if rates}, edges)
    return tuple(point for labels, rates in wanted.items() for point in sweep.points_at(labels, rates))
