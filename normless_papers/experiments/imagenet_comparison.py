"""De & Smith's comparison of methods for ResNet-50 on ImageNet at three batch sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import UNKNOWN, Check, Estimate, difference, near, single_run
from normless_papers.claims.training import chance_of, is_control
from normless_papers.experiments.comparison import Comparison, compared
from normless_papers.experiments.de_smith import ACCURACY, over_batch_sizes
from normless_papers.experiments.effort import Effort, Training
from normless_papers.experiments.runs import Runs

GHOST_BATCH_SIZE = 256
# The usual value of He et al.; the papers do not state theirs for ImageNet.
WEIGHT_DECAY = 1e-4
# The texts describe Fixup by its rules (ZeroInit, section 2) and are silent about the rate of its scalars, which its
# authors' code for ImageNet divides by 10. Of α and the scalar bias after the sum neither text names a rate of their
# own, nor does appendix G's code, so that the one of the grid is theirs too.
FIXUP = {"scalar_rate_scale": 0.1}


class ImageNetComparison(Comparison):
    """Methods compared at several batch sizes: `large` has the largest and `small` the others."""

    @property
    def small(self) -> list[int]:
        """All batch sizes but the largest, 256 and 1024 in the papers."""
        return self.sizes[:-1]

    @property
    def large(self) -> list[int]:
        """The largest batch size, 4096 in the papers."""
        return self.sizes[-1:]

    def reached(self, method: str, size: int, metric: str = "") -> Estimate:
        """Return the optimal top-1 accuracy in percent; single runs of the papers' set-up have the known deviation.

        NaN at a batch size at which batch norm learned too little to be a control.
        """
        control = self.runs.accuracy(**self.labels("batch_norm", size))
        if not is_control(control, chance_of(self.runs.table)):
            return UNKNOWN
        top1 = super().reached(method, size, metric)
        return single_run(top1.mean) if top1.n == 1 and not self.runs.reduction else top1

    def within_points(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Check]:
        """Check that the first method is less than `points` below the second, at each batch size of the papers."""
        claim = f"{first} is less than {points:g} points below {second}"
        return list(map(self.as_printed, self.above(claim, first, second, sizes, by=-points)))

    def better_by(self, first: str, second: str, sizes: Sequence[int], points: float = 0.0) -> list[Check]:
        """Check that the first method is above the second by `points`; above 0, only for the papers' set-up."""
        gap = f"more than {points:g} points above" if points > 0 else "above"
        checks = self.above(f"{first} is {gap} {second}", first, second, sizes, by=points)
        return list(map(self.as_printed, checks)) if points > 0 else checks

    def differ_by_less(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Check]:
        """Check that two methods differ by less than `points`, at each batch size of the papers."""
        claim, gaps = f"{first} and {second} differ by less than {points:g} points", []
        for size in sizes:
            gap = difference(self.reached(first, size), self.reached(second, size))
            gaps.append(self.as_printed(near(f"{claim} {self.at(size)}.", gap, 0.0, points)))
        return gaps

    def flat(self, method: str, points: float) -> list[Check]:
        """Check that a method loses less than `points` from the smallest batch size to any other of the papers."""
        first, *others = self.sizes
        claim = f"is less than {points:g} points below that at {first}."
        checks = [
            self.exceeds(f"{method} {self.at(size)} {claim}", (method, size), (method, first), by=-points)
            for size in others
        ]
        return list(map(self.as_printed, checks))

    def without_identity(self, unbiased: str, biased: str) -> list[Check]:
        """Check both papers' claims on ResNet-50-V1: a scalar bias mostly offsets the ReLUs on its skip path.

        `unbiased` is the table's name of ZeroInit, and `biased` that of ZeroInit with a scalar bias after the sum.
        """
        return [
            *self.better_by("fixup", unbiased, self.sizes),
            *self.better_by("batch_norm", unbiased, self.sizes),
            *self.better_by(biased, unbiased, self.sizes),
            *self.better_by("batch_norm", "fixup", self.large),
            *self.better_by("fixup", unbiased, self.sizes, 3.5),
            *self.better_by("batch_norm", "fixup", self.large, 2.0),
            *self.within_points("fixup", "batch_norm", self.small, 2.0),
            *self.within_points(biased, "fixup", self.small, 0.5),
            *self.flat("batch_norm", 1.0),
        ]

    def accuracies(self, title: str) -> Evidence:
        """Return the evidence of a table of top-1 and top-5 accuracies by method and batch size."""
        table = self.runs.printed(ACCURACY, "top1")
        table["top5"] = [self._top5(row) for row in table.to_dict("records")]
        return self.evidence(title, measured=table, on=("method", "batch_size"))

    def _top5(self, row: Mapping[Any, Any]) -> float:
        """Return the mean top-5 accuracy in percent of the runs that an optimum's top-1 accuracy averages."""
        if math.isnan(row["lr_log2"]):
            return math.nan
        runs = self.runs.chosen(**self.labels(row["method"], row["batch_size"]), rate=2.0 ** row["lr_log2"])
        return float(runs.nlargest(int(row["n"]), ACCURACY)["test_accuracy_top5"].mean())


def on_imagenet(
    context: Context, *, methods: Mapping[str, str], batch_sizes: Sequence[int], model: str, effort: Effort
) -> Training:
    """Declare a table's methods, given as schemes by name, with a network given as text."""
    settings = {
        method: {"scheme": scheme, "weight_decay": WEIGHT_DECAY} | (FIXUP if scheme == "fixup" else {})
        for method, scheme in methods.items()
    }
    channels = "" if effort.channels is None else f", channels={effort.channels}"
    network: dict[str, Any] = {"model": f"{model.removesuffix(')')}{channels})", "ghost": GHOST_BATCH_SIZE}
    return over_batch_sizes(context, "imagenet", settings, batch_sizes, effort, metrics=(ACCURACY,), **network)


def compared_on_imagenet(runs: Runs, effort: Effort) -> ImageNetComparison:
    """Return the comparison of runs on ImageNet."""
    return ImageNetComparison(**vars(compared(runs, effort)))


def imagenet_table(
    id: str,  # noqa: A002 - as in `artefact`
    checks: Callable[[ImageNetComparison], Sequence[Check]],
    methods: Mapping[str, str],
    model: str,
    title: str,
) -> None:
    """Register a table of accuracies by method and batch size; see `on_imagenet`."""
    trains = partial(on_imagenet, methods=methods, model=model)

    @artefact(id, basis="training", checks=checks, trains=trains)
    def measure(context: Context, runs: Runs, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
        return compared_on_imagenet(runs, effort).accuracies(title)
