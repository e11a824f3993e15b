"""Sweeps over the batch size of one network: optima, their learning rates, and what is claimed of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.protocol import Effort, batch_sweeps
from normless.papers.selected import Runs, Selection, carried_out
from normless.papers.verdict import Check, check, larger
from normless.report.axes import new_panels
from normless.report.sweeps import inks_of, optimum_against, rate_against

Methods = Mapping[str, Mapping[str, Any]]

ACCURACY = "test_accuracy"
# Printed training losses of this order at such accuracies hold the L2 term, which the papers do not say.
LOSS = "training_loss_with_l2"
# Batches at which all methods are claimed to behave alike.
SMALL_BATCH = 64


@dataclass(frozen=True)
class BatchRuns:
    """Runs of some methods at some batch sizes.

    Attributes:
        runs: all of them; axes method and batch_size.
        methods: what each sets.
        metrics: whose optima are wanted.
    """

    runs: Runs
    methods: Methods
    metrics: Sequence[str]

    @cached_property
    def optima(self) -> dict[str, Selection]:
        """The best rate of each method and batch size, by metric."""
        return {metric: self.runs.selected(metric) for metric in self.metrics}

    @property
    def batch_sizes(self) -> list[int]:
        """All that were run, in increasing order."""
        return sorted(int(size) for size in self.optima[self.metrics[0]].table["batch_size"].unique())

    def up_to(self, largest: int) -> list[int]:
        """The batch sizes that are no larger."""
        return [size for size in self.batch_sizes if size <= largest]

    def larger_everywhere(
        self, metric: str, first: str, second: str, claim: str, sizes: Sequence[int] | None = None
    ) -> list[Check]:
        """That the optimum of one method lies above another's, at each batch size; `claim` is a sentence's start."""
        found = self.optima[metric]
        return [
            larger(
                f"{claim} at batch size {size}.",
                found.estimate(method=first, batch_size=size),
                found.estimate(method=second, batch_size=size),
            )
            for size in (self.batch_sizes if sizes is None else sizes)
        ]

    def agree(self, metric: str, first: str, second: str, sizes: Sequence[int]) -> list[Check]:
        """That two methods differ by no more than the larger of their deviations, at each batch size."""
        found = self.optima[metric]
        checks = []
        for size in sizes:
            one = found.estimate(method=first, batch_size=size)
            other = found.estimate(method=second, batch_size=size)
            gap, deviation = abs(one.mean - other.mean), max(one.deviation, other.deviation)
            checks.append(
                check(
                    f"{first} and {second} agree within one standard deviation at batch size {size}.",
                    None if math.isnan(gap) or math.isnan(deviation) else gap <= deviation,
                    gap=gap,
                    deviation=deviation,
                )
            )
        return checks

    def falls(self, metric: str, method: str) -> Check:
        """That a method is better at the smallest batch size than at the largest."""
        found, sizes = self.optima[metric], self.batch_sizes
        return larger(
            f"The {metric.replace('_', ' ')} of {method} is lower at batch size {sizes[-1]} than at {sizes[0]}.",
            found.estimate(method=method, batch_size=sizes[0]),
            found.estimate(method=method, batch_size=sizes[-1]),
        )

    def critical(self, metric: str, method: str, tolerance: float = 0.5) -> float:
        """The largest batch size whose optimum is no more than a tolerance below that of the best; NaN if none is."""
        found = self.optima[metric]
        means = {size: found.estimate(method=method, batch_size=size).mean for size in self.batch_sizes}
        known = {size: mean for size, mean in means.items() if not math.isnan(mean)}
        return (
            float(max(size for size in known if known[size] >= max(known.values()) - tolerance))
            if known
            else math.nan
        )

    def proportional(self, metric: str, method: str, sizes: Sequence[int]) -> Check:
        """That the optimal rate is proportional to the batch size until it saturates: log₂ slope 1 ± 0.5.

        The slope is that of the least-squares line up to the first batch size with the largest optimal rate; if that
        is the smallest one, through all. It is undecided below three batch sizes, and where one rate was tried.
        """
        exponents = {size: self.optima[metric].exponent(method=method, batch_size=size) for size in sizes}
        found = {math.log2(size): exponent for size, exponent in exponents.items() if not math.isnan(exponent)}
        saturated = max(found, key=lambda size: (found[size], -size), default=math.nan)
        rising = {size: exponent for size, exponent in found.items() if size <= saturated}
        known = found if len(rising) < 2 else rising
        single = any(self._is_one_rate(size) for size in sizes)
        slope = _slope(known) if len(known) >= 3 and not single else math.nan
        words = f"up to batch size {max(sizes)}" if sizes else "at small batch sizes"
        return check(
            f"By {metric.replace('_', ' ')} the optimal learning rate of {method} is proportional to the batch size "
            f"{words}, until it saturates: log₂ of it rises by 1 ± 0.5 per doubling.",
            None if math.isnan(slope) else abs(slope - 1) <= 0.5,
            slope=slope,
            batch_sizes=len(known),
        )

    def similar_rates(self, metric: str, sizes: Sequence[int], factor: float) -> list[Check]:
        """That the methods' optimal rates lie within a factor of each other, at each batch size."""
        checks = []
        for size in sizes:
            held = [self.optima[metric].exponent(method=method, batch_size=size) for method in self.methods]
            spread = max(held) - min(held) if not any(math.isnan(one) for one in held) else math.nan
            checks.append(
                check(
                    f"By {metric.replace('_', ' ')} the optimal learning rates of all methods lie within a factor "
                    f"{factor:g} at batch size {size}.",
                    None if math.isnan(spread) or self._is_one_rate(size) else 2**spread <= factor,
                    factor=2**spread,
                    lowest=2 ** min(held),
                    highest=2 ** max(held),
                )
            )
        return checks

    def table(self) -> pd.DataFrame:
        """A row per metric, method and batch size: `metric`, the axes, `mean`, `std`, the rates and counts."""
        tables = [found.published_columns("mean").assign(unit=found.unit) for found in self.optima.values()]
        named = [table.assign(metric=metric) for metric, table in zip(self.optima, tables, strict=True)]
        whole = pd.concat(named, ignore_index=True)
        return whole[["metric", "unit", *(name for name in whole.columns if name not in ("metric", "unit"))]]

    def _is_one_rate(self, size: int) -> bool:
        """Whether only one learning rate was tried, so that equal optima say nothing."""
        rows = self.runs.table[self.runs.table["batch_size"].astype(int) == size]
        return bool(rows["rate"].nunique() < 2)


def batch_runs(
    context: Context,
    name: str,
    methods: Methods,
    batch_sizes: Sequence[int],
    *,
    model: str,
    effort: Effort,
    ghost: int | None,
    metrics: Sequence[str] = (ACCURACY, LOSS),
) -> BatchRuns:
    """Carry out some methods at some batch sizes; see `normless.papers.protocol.batch_sweeps`."""
    sweeps = batch_sweeps(context, name, methods, batch_sizes, model=model, effort=effort, ghost=ghost)
    return BatchRuns(
        carried_out(
            context.lab,
            sweeps,
            metrics,
            whole=effort.whole and context.keeps(effort.data),
            control={"method": "batch_norm"},
        ),
        methods,
        metrics,
    )


def batch_evidence(
    found: BatchRuns,
    checks: Sequence[Check],
    *,
    title: str,
    rates: bool,
    measured: pd.DataFrame | None = None,
    on: tuple[str, ...] = (),
    remarks: Sequence[str] = (),
) -> Evidence:
    """The evidence of a figure over batch sizes, with a panel per metric.

    Args:
        found: the runs.
        checks: of the claim.
        title: of the figure's first panel.
        rates: draw the optimal learning rates and not what is reached at them.
        measured: the table, where it is not that of all optima.
        on: see `Evidence`.
        remarks: see `Evidence`; those on the optima follow.
    """
    inks = inks_of({method: str(settings["scheme"]) for method, settings in found.methods.items()})

    def draw() -> Axes:
        style: dict[str, Any] = {"series": "method", "across": "batch_size", "inks": inks}
        axes = new_panels(1, len(found.metrics), width=4.9, height=3.2)
        for ax, (metric, chosen) in zip(axes, found.optima.items(), strict=True):
            words = f"{metric.replace('_', ' ')} ({'%' if chosen.unit == 'percent' else 'nats'})"
            if rates:
                rate_against(
                    chosen.table, ax, title=f"{title}, by {metric.split('_')[0]}", proportional=True, **style
                )
            else:
                optimum_against(chosen.table, ax, title=title, up=words, **style)
        return axes[0]

    told = [remark for chosen in found.optima.values() for remark in found.runs.remarks(chosen)]
    return Evidence(
        measured=found.table() if measured is None else measured,
        checks=qualified(checks, found.runs.reduction),
        setup=found.runs.setup,
        on=on,
        draw=draw,
        remarks=(*remarks, *dict.fromkeys(told)),
    )


def _slope(points: Mapping[float, float]) -> float:
    """Of the least-squares line through (x, y)."""
    x, y = list(points), list(points.values())
    middle, height = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - middle) * (b - height) for a, b in points.items()) / math.fsum((a - middle) ** 2 for a in x)
