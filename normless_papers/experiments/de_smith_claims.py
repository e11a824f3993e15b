"""The claims of De & Smith's comparisons, as their YAML files declare them.

An entry with `compares` is a table or figure of the optima of some methods. Its `claims` are rows of one key, the
name of a method of `DeclaredComparison`, with its arguments; `scale: number` or `scale: shape` beside it leaves the
check open in a smaller set-up, see `Comparison.as_printed`, and `each` stands for several rows, as in
`normless_papers.claims.declared`. Sizes are listed, or chosen among those that were run: `smallest`, `largest`,
`others` (all but the largest), or a mapping with the first (`from`), the last (`to`) or a bound (`below`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from normless_papers.claims import Claim, check, difference, equivalent, larger, near, not_asked
from normless_papers.claims.declared import ClaimRow
from normless_papers.experiments.comparison import MARGIN, Comparison, ordered
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.runs import Runs
from normless_papers.published import published_as

# The batch size at which the papers have batch norm at its best.
BEST_BATCH = 16


def compared(runs: Runs, effort: Effort) -> DeclaredComparison:
    """Return the comparison of runs with an axis of methods, one of them the control, and one of sizes."""
    (column,) = runs.control
    (axis,) = (axis for axis in runs.axes if axis != column)
    return DeclaredComparison(runs, effort.step, axis, column, runs.training.metrics)


class DeclaredComparison(Comparison):
    """A comparison, and the claims on it that entries declare."""

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the checks of a declared claim."""
        ((name, given),) = ((key, value) for key, value in row.items() if key not in ("scale", "each"))
        arguments = {key: self._argument(key, value) for key, value in given.items()}
        made = getattr(self, name)(**arguments)
        checks = [made] if isinstance(made, Claim) else list(made)
        return [self.as_printed(own, row["scale"]) for own in checks] if "scale" in row else checks

    def _argument(self, name: str, value: Any) -> Any:
        if name in ("size", "start"):
            return self.chosen(value)[0]
        if name == "sizes":
            return self.chosen(value)
        return tuple(value) if isinstance(value, list) else value

    def chosen(self, sizes: Any) -> list[int]:
        """Return the sizes that a claim names."""
        if isinstance(sizes, int):
            return [sizes]
        if isinstance(sizes, str):
            return {"smallest": self.sizes[:1], "largest": self.sizes[-1:], "others": self.sizes[:-1]}[sizes]
        if not isinstance(sizes, Mapping):
            return list(sizes)
        first, last = sizes.get("from", 0), sizes.get("to", math.inf)
        found = [size for size in self.sizes if first <= size <= last and size < sizes.get("below", math.inf)]
        return found or self.sizes[-1:] if sizes.get("or") == "largest" else found

    def can_train(
        self,
        methods: Sequence[str],
        sizes: Sequence[int] | None = None,
        *,
        also: bool = False,
        control: int | None = None,
        claim: str = "{} can be trained {}.",
    ) -> list[Claim]:
        """Check that methods train at some sizes, or at all; with `also`, at these and all that were run.

        Batch norm is the control of the others at the same size, and of itself at the size `control`, by default the
        smallest. Not asked of sizes that were not run.
        """
        own = self.sizes[0] if control is None else control
        every = self.sizes if sizes is None else sorted({*sizes, *(self.sizes if also else ())})
        checks = []
        for method, size in ((method, size) for method in methods for size in every):
            if (method, size) != ("batch_norm", own):
                against = own if method == "batch_norm" else size
                found = self.trains(claim.format(method, self.at(size)), method, size, against=against)
                checks.append(self._asked(size, found))
        return checks

    def cannot_train(self, method: str, sizes: Sequence[int]) -> list[Claim]:
        """Check that a method trains at no rate at sizes at which batch norm does; not asked of those not run."""
        claim = f"{method} cannot be trained {{}}, where batch norm can."
        return [self._asked(size, self.does_not_train(claim.format(self.at(size)), method, size)) for size in sizes]

    def _asked(self, size: int, outcome: Claim) -> Claim:
        absent = f"networks of {size} layers were not trained"
        return outcome if size in self.sizes else not_asked(outcome, absent)

    def times_above(self, claim: str, first: tuple[str, int], second: tuple[str, int], factor: float) -> Claim:
        """Check that a method at a size is more than so many times another."""
        return larger(claim, self.reached(*first), self.reached(*second).scaled(factor))

    def more_accurate(self, claim: str, first: str, second: str) -> list[Claim]:
        """Check at each size that a method is more accurate than another, of which diverged runs count as chance."""
        pairs = {
            size: [self.runs.accuracy(**self.labels(name, size)) for name in (first, second)] for size in self.sizes
        }
        return [larger(f"{claim} {self.at(size)}.", *pair) for size, pair in pairs.items()]

    def declines_more(self, claim: str, first: str, second: str, metric: str = "") -> Claim:
        """Check that a method changes more than another from the smallest size to the largest."""
        return larger(claim, *(self.decline(method, metric=metric) for method in (first, second)))

    def close_at(
        self, claim: str, first: str, second: str, sizes: Sequence[int], points: float, metric: str = ""
    ) -> list[Claim]:
        """Check at each size that two methods differ by less than so much."""
        gaps = {size: difference(*(self.reached(name, size, metric) for name in (first, second))) for size in sizes}
        return [near(f"{claim} {self.at(size)}.", gap, 0, points) for size, gap in gaps.items()]

    def inside(self, metric: str) -> Claim:
        """Check that every optimum lies inside the grid."""
        table = self.runs.optima(metric)
        edges = int((table["edge"] != "").sum())
        claim = f"No optimum by {metric.replace('_', ' ')} lies at an end of the learning rates tried."
        return check(claim, None if math.isinf(self.step) else not edges, at_an_end=edges, optima=len(table))

    def best_batch(self) -> float:
        """Return the batch size at which batch norm's optimal test accuracy is highest; NaN if one is missing."""
        means = {size: self.reached("batch_norm", size).mean for size in self.sizes}
        return math.nan if any(map(math.isnan, means.values())) else float(max(means, key=means.__getitem__))

    def peak(self) -> Claim:
        """Check that no batch size is better than 16; inconclusive if a better one is not significantly better."""
        best = self.best_batch()
        claim = f"Batch norm's test accuracy is highest at batch size {BEST_BATCH}."
        if math.isnan(best) or BEST_BATCH not in self.sizes:
            return check(claim, None, best_batch_size=best)
        reached = self.reached("batch_norm", int(best))
        better = larger(claim, reached, self.reached("batch_norm", BEST_BATCH))
        holds = True if best == BEST_BATCH else False if better.verdict == "holds" else None
        return check(claim, holds, best_batch_size=best, at_best=reached.mean)

    def critical(self) -> Claim:
        """Compare the largest batch sizes at which batch norm and ZeroInit are close to their best."""
        sizes = {}
        for method in ("batch_norm", "zeroinit"):
            means = {size: self.reached(method, size).mean for size in self.sizes}
            close = [size for size, mean in means.items() if mean >= max(means.values()) - 0.5]
            sizes[method] = math.nan if any(map(math.isnan, means.values())) else float(max(close))
        ratio = sizes["batch_norm"] / sizes["zeroinit"]
        # A method that is as good at the largest batch size as anywhere has a larger, unknown critical size.
        unknown = math.isnan(ratio) or sizes["zeroinit"] == self.sizes[-1]
        claim = (
            "(a) The largest batch size within 0.5 points of the best is at least 4 times larger with batch norm "
            "than with ZeroInit (about ten times in the paper)."
        )
        return check(claim, None if unknown else ratio >= 4, ratio=ratio, **sizes)

    def saturation(self, method: str) -> float:
        """Return log₂ of the largest optimal rate over all batch sizes; NaN if an optimum is missing or at an end."""
        exponents = [self.exponent(method, size) for size in self.sizes]
        return math.nan if any(map(math.isnan, exponents)) else max(exponents)

    def saturations(self) -> str:
        """Return `saturation` of all methods in words."""
        methods = ("without_batch_norm", "zeroinit", "batch_norm")
        return ", ".join(f"{method} {self.saturation(method):g}" for method in methods)

    def saturates_as_printed(self, method: str) -> Claim:
        """Check the largest optimal rate against zeroinit/figure-2, to a factor 2."""
        printed, exponent = published_as("zeroinit/figure-2").rows[0]["value"][method], self.saturation(method)
        claim = f"The optimal learning rate of {method} saturates at 2^{printed}, to a factor 2."
        return check(claim, None if math.isnan(exponent) else abs(exponent - printed) <= 1, exponent=exponent)

    def saturates_above(self, first: str, second: str) -> Claim:
        """Check which method's rates saturate higher; undecided as in `ordered`."""
        largest = {name: self.saturation(name) for name in (first, second)}
        ranges = {}
        for name, exponent in largest.items():
            # The rates within a deviation of the largest optimum, over the batch sizes that have it.
            own = [self.rate_range(name, size) for size in self.sizes if self.exponent(name, size) == exponent]
            lows, highs = zip(*own or [(math.nan, math.nan)], strict=True)
            ranges[name] = max(lows), min(highs)
        holds = ordered(largest[first], ranges[first], largest[second], ranges[second])
        claim = f"The largest optimal learning rate of {first} is above that of {second}."
        return check(claim, holds, **{name: 2**exponent for name, exponent in largest.items()})

    def constant(self, method: str, sizes: Sequence[int]) -> Claim:
        """Check that the highest and the lowest accuracy of ZeroInit at some sizes are equivalent within `MARGIN`."""
        reached = [replace(self.reached(method, size), name=self.at(size)) for size in sizes]
        highest, lowest = (most(reached, key=lambda accuracy: accuracy.mean) for most in (max, min))
        claim = f"(a) ZeroInit's accuracies up to batch size 256 differ by less than {MARGIN:g} points."
        return equivalent(claim, highest, lowest, MARGIN)
