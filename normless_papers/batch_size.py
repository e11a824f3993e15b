"""Sweeps over the batch size of one network: optima, their learning rates, and what is claimed of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, new_panels, optimum_against, rate_against
from normless_papers.artefact import Context
from normless_papers.estimates import difference
from normless_papers.evidence import Evidence
from normless_papers.optima import Runs, Selection, carried_out
from normless_papers.protocol import Effort, batch_sweeps
from normless_papers.trained import chance_of, tells
from normless_papers.verdict import Check, Estimate, above_zero, at_scale, check, larger

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
        step: the factor between neighbouring learning rates.
    """

    runs: Runs
    methods: Methods
    metrics: Sequence[str]
    step: float

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

    def is_too_short(self, size: int) -> bool:
        """Whether batch norm at a batch size was trained too little to tell what did not train."""
        found = self.optima[self.metrics[0]]
        return not tells(found.accuracy(method="batch_norm", batch_size=size), chance_of(found.runs))

    def reached(self, metric: str, method: str, size: int) -> Estimate:
        """What is reached at the best rate."""
        return self.optima[metric].estimate(method=method, batch_size=size)

    def exponent(self, metric: str, method: str, size: int) -> float:
        """log₂ of the optimal rate; NaN also where it lies at an end of those tried, or only one was."""
        row = self.optima[metric].row(method=method, batch_size=size)
        if row is None or row["edge"] or math.isinf(self.step):
            return math.nan
        return self.optima[metric].exponent(method=method, batch_size=size)

    def as_printed(self, one: Check) -> Check:
        """A check of printed numbers, or of what only the papers' length of training can show."""
        return at_scale(one, self.runs.reduction)

    def trains(self, method: str, size: int) -> Check:
        """That a method trains at a batch size, against batch norm there; batch norm itself against that at 64."""
        control = {"method": "batch_norm", "batch_size": SMALL_BATCH if method == "batch_norm" else size}
        return self.optima[ACCURACY].trains(
            f"{method} trains at batch size {size}.", against=control, method=method, batch_size=size
        )

    def larger_everywhere(
        self, metric: str, first: str, second: str, claim: str, sizes: Sequence[int] | None = None
    ) -> list[Check]:
        """That the optimum of one method lies above another's, at each batch size; `claim` is a sentence's start."""
        return [
            larger(
                f"{claim} at batch size {size}.",
                self.reached(metric, first, size),
                self.reached(metric, second, size),
            )
            for size in (self.batch_sizes if sizes is None else sizes)
        ]

    def agree(self, metric: str, first: str, second: str, sizes: Sequence[int]) -> list[Check]:
        """That the means of two methods are no further apart than the larger deviation, at each batch size.

        It fails only where the means are further apart than that at 95 %, and is inconclusive between.
        """
        checks = []
        for size in sizes:
            one, other = self.reached(metric, first, size), self.reached(metric, second, size)
            gap, deviation = abs(one.mean - other.mean), max(one.deviation, other.deviation)
            apart = above_zero(
                gap - deviation, [one.deviation**2 / one.n, other.deviation**2 / other.n], [one.n, other.n]
            )
            checks.append(
                check(
                    f"{first} and {second} agree within one standard deviation at batch size {size}.",
                    True if gap <= deviation else False if apart else None,
                    gap=gap,
                    deviation=deviation,
                )
            )
        return checks

    def decline(self, metric: str, method: str, first: int | None = None) -> Estimate:
        """What is reached at a batch size, by default the smallest, less what is reached at the largest."""
        sizes = self.batch_sizes
        start = sizes[0] if first is None else first
        return difference(self.reached(metric, method, start), self.reached(metric, method, sizes[-1]))

    def falls(self, metric: str, method: str) -> Check:
        """That a method is better at the smallest batch size than at the largest."""
        sizes = self.batch_sizes
        return larger(
            f"The {metric.replace('_', ' ')} of {method} is lower at batch size {sizes[-1]} than at {sizes[0]}.",
            self.reached(metric, method, sizes[0]),
            self.reached(metric, method, sizes[-1]),
        )

    def critical(self, metric: str, method: str, tolerance: float = 0.5) -> float:
        """The largest batch size whose optimum is no more than a tolerance below the best; NaN if one is missing."""
        means = {size: self.reached(metric, method, size).mean for size in self.batch_sizes}
        if any(map(math.isnan, means.values())):
            return math.nan
        return float(max(size for size, mean in means.items() if mean >= max(means.values()) - tolerance))

    def proportional(self, metric: str, method: str, sizes: Sequence[int]) -> Check:
        """That the optimal rate is proportional to the batch size until it saturates: log₂ slope 1 ± 0.5.

        The slope is that of the least-squares line up to the first batch size with the largest optimal rate; if that
        is the smallest one, through all. It is undecided below three batch sizes with an optimum inside the grid.
        """
        exponents = {math.log2(size): self.exponent(metric, method, size) for size in sizes}
        found = {size: exponent for size, exponent in exponents.items() if not math.isnan(exponent)}
        saturated = max(found, key=lambda size: (found[size], -size), default=math.nan)
        rising = {size: exponent for size, exponent in found.items() if size <= saturated}
        known = found if len(rising) < 2 else rising
        slope = _slope(known) if len(known) >= 3 else math.nan
        words = f"up to batch size {max(sizes)}" if sizes else "at small batch sizes"
        return check(
            f"By {metric.replace('_', ' ')} the optimal learning rate of {method} is proportional to the batch size "
            f"{words}, until it saturates: log₂ of it rises by 1 ± 0.5 per doubling.",
            None if math.isnan(slope) else abs(slope - 1) <= 0.5,
            slope=slope,
            batch_sizes=len(known),
        )

    def similar_rates(
        self, metric: str, sizes: Sequence[int], factor: float, methods: Sequence[str] | None = None
    ) -> list[Check]:
        """That the methods' optimal rates lie within a factor, or within a step of the grid, at each batch size."""
        bound, names = max(factor, self.step), " and ".join(methods) if methods else "all methods"
        checks = []
        for size in sizes:
            exponents = [self.exponent(metric, method, size) for method in methods or self.methods]
            spread = math.nan if any(map(math.isnan, exponents)) else 2 ** (max(exponents) - min(exponents))
            checks.append(
                check(
                    f"By {metric.replace('_', ' ')} the optimal learning rates of {names} lie within a factor "
                    f"{bound:g} at batch size {size}.",
                    None if math.isnan(spread) else spread <= bound,
                    factor=spread,
                    lowest=2 ** min(exponents),
                    highest=2 ** max(exponents),
                )
            )
        return checks

    def larger_rate(self, first: str, second: str, size: int, factor: float = 1.0) -> Check:
        """That the best rate of one method is above another's, or so many times as large; undecided where equal.

        Two optima at one point of the grid may differ by less than its step.
        """
        one, other = self.exponent(ACCURACY, first, size), self.exponent(ACCURACY, second, size)
        times = f"at least {factor:g} times" if factor > 1 else "larger than"
        unknown = math.isnan(one - other) or one == other
        return check(
            f"At batch size {size} the optimal learning rate of {first} is {times} that of {second}.",
            None if unknown else one > other and 2 ** (one - other) >= factor,
            **{first: 2**one, second: 2**other},
        )

    def table(self) -> pd.DataFrame:
        """A row per metric, method and batch size: `metric`, the axes, `mean`, `std`, the rates and counts."""
        tables = [found.published_columns("mean").assign(unit=found.unit) for found in self.optima.values()]
        named = [table.assign(metric=metric) for metric, table in zip(self.optima, tables, strict=True)]
        whole = pd.concat(named, ignore_index=True)
        return whole[["metric", "unit", *(name for name in whole.columns if name not in ("metric", "unit"))]]


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
    """Carry out some methods at some batch sizes; see `normless_papers.protocol.batch_sweeps`."""
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
        effort.step,
    )


def batch_evidence(
    found: BatchRuns,
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
        facts=found,
        setup=found.runs.setup,
        on=on,
        draw=draw,
        remarks=(*remarks, *dict.fromkeys(told)),
        reduction=found.runs.reduction,
    )


def _slope(points: Mapping[float, float]) -> float:
    """Of the least-squares line through (x, y)."""
    x, y = list(points), list(points.values())
    middle, height = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - middle) * (b - height) for a, b in points.items()) / math.fsum((a - middle) ** 2 for a in x)
