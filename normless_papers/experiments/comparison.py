"""Methods at several depths or batch sizes, each at its best learning rate, as De & Smith compare them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import inks_of, new_panels, optimum_against, rate_against
from normless_papers.claims import (
    CheckAspect,
    Claim,
    Estimate,
    at_scale,
    check,
    difference,
    equivalent,
    larger,
    not_asked,
)
from normless_papers.evidence import QUANTITY, Evidence, with_quantities
from normless_papers.experiments.runs import Runs, chosen

# "Competitive with batch normalization (within one standard deviation)" (De & Smith 2019, section 3): two of the
# deviations of 0.2 to 0.3 points that its tables print, as a margin that does not grow with the noise of the runs.
MARGIN = 0.5


@dataclass(frozen=True)
class Comparison:
    """Runs of some methods, along the axis `column`, at some sizes, along `axis`: depths or batch sizes.

    `step` is the factor between neighbouring learning rates. The default metric is the first of `metrics`.
    """

    runs: Runs
    step: float
    axis: str
    column: str
    metrics: tuple[str, ...]

    @property
    def sizes(self) -> list[int]:
        """The sizes that were run, in increasing order."""
        return sorted(int(size) for size in self.runs.labels(self.axis))

    def labels(self, method: str, size: int) -> dict[str, Any]:
        """Return the labels of a combination."""
        return {self.column: method, self.axis: size}

    def at(self, size: int) -> str:
        """Return a size in words."""
        return f"at {self.axis.replace('_', ' ')} {size}"

    def reached(self, method: str, size: int, metric: str = "") -> Estimate:
        """Return the estimate at the best rate."""
        return replace(self.runs.optimum(metric or self.metrics[0], **self.labels(method, size)), name=method)

    def exponent(self, method: str, size: int, metric: str = "") -> float:
        """Return log₂ of the optimal rate; NaN if it is at an end of those tried, or if only one was tried."""
        metric, labels = metric or self.metrics[0], self.labels(method, size)
        table = self.runs.optima(metric)
        row = table[(table[self.column] == method) & (table[self.axis] == size)]
        if row.empty or row["edge"].iloc[0] or math.isinf(self.step):
            return math.nan
        return self.runs.exponent(metric, **labels)

    def as_printed(self, printed: Claim, of: CheckAspect = "number") -> Claim:
        """Return a check that needs the papers' own scale, of a number or an ordering; see `at_scale`."""
        return at_scale(printed, self.runs.reduction, of)

    def trains(self, claim: str, method: str, size: int, *, against: int | None = None) -> Claim:
        """Check that a method trains at a size at which batch norm does, or as batch norm does at another size.

        Undecided if its best rate is an end of those tried: "We always verify that the optimal learning rates are not
        at the boundary of our grid search" (ZeroInit, section 3).
        """
        labels, control = self.labels(method, size), self.labels("batch_norm", size if against is None else against)
        checked = self.runs.trains(claim, against=control, **labels)
        edges = chosen(self.runs.optima("test_accuracy"), **labels)["edge"]
        is_open = checked.verdict == "holds" and not math.isinf(self.step) and any(edges != "")
        return not_asked(checked, "its best rate is an end of those tried") if is_open else checked

    def does_not_train(self, claim: str, method: str, size: int) -> Claim:
        """Check that a method does not train at a size at which batch norm does."""
        return self.runs.does_not_train(claim, against=self.labels("batch_norm", size), **self.labels(method, size))

    def above(
        self,
        claim: str,
        first: str,
        second: str,
        sizes: Sequence[int] | None = None,
        *,
        by: float = 0.0,
        metric: str = "",
    ) -> list[Claim]:
        """Check that a method is above another by so much at each size, which ends the sentence of the claim."""
        return [
            larger(
                f"{claim} {self.at(size)}.",
                self.reached(first, size, metric),
                self.reached(second, size, metric),
                by=by,
            )
            for size in (self.sizes if sizes is None else sizes)
        ]

    def exceeds(
        self, claim: str, first: tuple[str, int], second: tuple[str, int] | float, *, by: float = 0.0
    ) -> Claim:
        """Check that a method at a size is above another, or above a number, by so much."""
        other = self.reached(*second) if isinstance(second, tuple) else second
        return larger(claim, self.reached(*first), other, by=by)

    def agree(self, first: str, second: str, sizes: Sequence[int]) -> list[Claim]:
        """Check that two methods are equivalent within `MARGIN` points at each size; see `equivalent`."""
        claim = f"{first} and {second} agree within {MARGIN:g} points"
        return [
            equivalent(f"{claim} {self.at(size)}.", self.reached(first, size), self.reached(second, size), MARGIN)
            for size in sizes
        ]

    def decline(self, method: str, first: int | None = None, metric: str = "") -> Estimate:
        """Return the estimate at a size, by default the smallest, minus the estimate at the largest."""
        ends = (self.sizes[0] if first is None else first, self.sizes[-1])
        return replace(difference(*(self.reached(method, size, metric) for size in ends)), name=method)

    def falls(self, method: str, start: int, size: int) -> Claim:
        """Check that a method reaches less at a size than at the starting size."""
        what = self.metrics[0].replace("_", " ")
        before, after = (replace(self.reached(method, place), name=self.at(place)) for place in (start, size))
        return larger(f"The {what} of {method} {self.at(size)} is below that {self.at(start)}.", before, after)

    def proportional(self, method: str, sizes: Sequence[int], metric: str = "") -> Claim:
        """Check that the optimal rate is proportional to the batch size until it saturates: log₂ slope 1 ± 0.5.

        The line is fitted up to the first batch size with the largest rate, or through all if that is the smallest.
        Fewer than three batch sizes with an optimum inside the grid decide nothing.
        """
        metric = metric or self.metrics[0]
        exponents = {math.log2(size): self.exponent(method, size, metric) for size in sizes}
        inside = {size: exponent for size, exponent in exponents.items() if not math.isnan(exponent)}
        saturated = max(inside, key=lambda size: (inside[size], -size), default=math.nan)
        rising = {size: exponent for size, exponent in inside.items() if size <= saturated}
        points = inside if len(rising) < 2 else rising
        slope = linear_regression(list(points), list(points.values())).slope if len(points) >= 3 else math.nan
        words = f"up to batch size {max(sizes)}" if sizes else "at small batch sizes"
        claim = (
            f"By {metric.replace('_', ' ')} the optimal learning rate of {method} is proportional to the batch size "
            f"{words}, until it saturates: log₂ of it rises by 1 ± 0.5 per doubling."
        )
        holds = None if math.isnan(slope) else abs(slope - 1) <= 0.5
        return check(claim, holds, slope=slope, batch_sizes=len(points))

    def similar_rates(
        self, methods: Sequence[str], sizes: Sequence[int], factor: float, metric: str = ""
    ) -> list[Claim]:
        """Check that the methods' optimal rates lie within a factor, or a step of the grid, at each size.

        The check fails if all rates within a deviation of the optima are further apart, and is inconclusive between.
        """
        metric, bound, checks = metric or self.metrics[0], max(factor, self.step), []
        what = f"By {metric.replace('_', ' ')} the optimal learning rates of {', '.join(methods)}"
        for size in sizes:
            exponents = [self.exponent(method, size, metric) for method in methods]
            ranges = [self.rate_range(method, size, metric) for method in methods]
            ratio, apart, holds = _spread(exponents, ranges, bound)
            low, high = 2 ** min(exponents), 2 ** max(exponents)
            claim = f"{what} lie within a factor {bound:g} {self.at(size)}."
            numbers = {"factor": ratio, "largest_factor": bound, "lowest": low, "highest": high}
            checks.append(check(claim, holds, **numbers, factor_within_deviations=apart))
        return checks

    def larger_rate(self, first: str, second: str, size: int, factor: float = 1.0) -> Claim:
        """Check that the best rate of a method is above another's, or so many times as large.

        Undecided if the optima are equal, or if rates within a deviation of them are in the other order.
        """
        left, right = self.exponent(first, size), self.exponent(second, size)
        times = f"at least {factor:g} times" if factor > 1 else "larger than"
        claim = f"The optimal learning rate of {first} {self.at(size)} is {times} that of {second}."
        holds = ordered(left, self.rate_range(first, size), right, self.rate_range(second, size), factor)
        return check(claim, holds, **{first: 2**left, second: 2**right}, needed_factor=factor)

    def rate_range(self, method: str, size: int, metric: str = "") -> tuple[float, float]:
        """Return log₂ of the lowest and the highest rate within a deviation of the optimum at a size."""
        return self.runs.exponent_range(metric or self.metrics[0], **self.labels(method, size))

    def weakly_dependent(self, method: str) -> Claim:
        """Check that the optimal rate changes by at most a factor 2, or a step of the grid, between sizes.

        The check fails if all rates within a deviation of the optima are further apart, and is inconclusive between.
        """
        exponents = [self.runs.exponent(self.metrics[0], **self.labels(method, size)) for size in self.sizes]
        bound = max(2.0, self.step)
        factor, apart, holds = _spread(exponents, [self.rate_range(method, size) for size in self.sizes], bound)
        if len(exponents) < 2 or math.isinf(bound):
            holds = None
        claim = f"The optimal learning rate of {method} changes by at most a factor {bound:g} between {self.axis}s."
        numbers = {"factor": factor, "largest_factor": bound, "factor_within_deviations": apart}
        return check(claim, holds, **numbers, **{f"{self.axis}s": len(exponents)})

    def table(self) -> pd.DataFrame:
        """Return a row per metric, method and size: `metric`, `unit`, the axes, `mean`, `std`, rates and counts."""
        tables = []
        for metric in self.metrics:
            tables.append(self.runs.printed(metric, "mean"))
            tables[-1].insert(0, "metric", metric)
            tables[-1].insert(1, "unit", _unit(metric))
        return pd.concat(tables, ignore_index=True)

    def evidence(
        self,
        title: str,
        *,
        rates: bool = False,
        measured: pd.DataFrame | None = None,
        on: tuple[str, ...] = QUANTITY,
        quantity: tuple[str, Any] | None = None,
        remarks: Sequence[str] = (),
    ) -> Evidence:
        """Return the comparison as evidence, with a panel per metric, or of optimal learning rates with `rates`.

        `measured` replaces the table of all optima. `quantity`, the name and value of a single published number,
        becomes its first row. `on` and `remarks`, which precede those on the runs, are as in `Evidence`.
        """
        labels = {label: own for sweep in self.runs.sweeps for label, own in sweep.axes[self.column].items()}
        inks = inks_of({label: str(own["scheme"]) for label, own in labels.items()})
        style: dict[str, Any] = {"series": self.column, "across": self.axis, "inks": inks}

        def draw() -> Axes:
            by_depth = self.axis == "depth"
            axes = new_panels(1, 2 if by_depth else len(self.metrics), width=4.9, height=3.2)
            for ax, metric in zip(axes, self.metrics, strict=False):
                table, up = self.runs.optima(metric), f"{metric.replace('_', ' ')} ({_unit(metric, short=True)})"
                if rates:
                    by = f"{title}, by {metric.split('_')[0]}"
                    rate_against(table, ax, title=by, **style)
                else:
                    optimum_against(table, ax, title=title, y_label=up, **style)
            if by_depth:
                rate_against(self.runs.optima(self.metrics[0]), axes[1], title="Optimal learning rate", **style)
            return axes[0]

        table = self.table() if measured is None else measured
        if quantity:
            table = with_quantities(dict([quantity]), table.assign(quantity="optimum"))
        remarks = (*remarks, *self.runs.remarks(*self.metrics))
        return self.runs.evidence(table, draw, facts=self, on=on, remarks=remarks)

    def by_depth(self, title: str, remarks: Sequence[str] = ()) -> Evidence:
        """Return the evidence of a table over depth, in the printed columns."""
        measured = self.runs.printed(self.metrics[0], self.metrics[0])
        return self.evidence(title, measured=measured, on=(self.column, "depth"), remarks=remarks)


def ordered(
    first: float,
    first_range: tuple[float, float],
    second: float,
    second_range: tuple[float, float],
    factor: float = 1.0,
) -> bool | None:
    """Decide whether a best rate is above another, or so many times as large; None if their ranges leave it open.

    Rates are log₂, each with the lowest and the highest within a deviation of the optimum.
    """
    if math.isnan(first - second) or first == second:
        return None
    if first - second >= math.log2(factor) and first_range[0] > second_range[1]:
        return True
    lower = first_range[1] < second_range[0]
    return False if lower or (factor > 1 and first_range[1] - second_range[0] < math.log2(factor)) else None


def _spread(
    exponents: Sequence[float], ranges: Sequence[tuple[float, float]], bound: float
) -> tuple[float, float, bool | None]:
    """Return the factor between best rates, that between their ranges, and whether it is within a bound.

    Rates are log₂; NaN gives NaN and None. None also if the rates are further apart than the bound but their ranges
    are not.
    """
    factor = math.nan if any(map(math.isnan, exponents)) else 2 ** (max(exponents) - min(exponents))
    lows, highs = zip(*ranges, strict=True)
    apart = float(2.0 ** max(0.0, max(lows) - min(highs)))
    holds = None if math.isnan(factor) else True if factor <= bound else False if apart > bound else None
    return factor, apart, holds


def _unit(metric: str, *, short: bool = False) -> str:
    return ("%" if short else "percent") if "accuracy" in metric else "nats"
