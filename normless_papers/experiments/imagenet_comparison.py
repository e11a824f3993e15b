"""Methods on ResNet-50 and ImageNet at three batch sizes, as in both papers of De & Smith."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import IMAGENET_DEVIATION, UNKNOWN, Check, Estimate, difference, near, single_run
from normless_papers.claims.training import chance_of, is_control
from normless_papers.experiments.comparison import Comparison
from normless_papers.experiments.de_smith import ACCURACY, over_batch_sizes
from normless_papers.experiments.effort import Effort

GHOST_BATCH_SIZE = 256
# The weight decay of He et al., which is usual for these networks; the papers do not state theirs for ImageNet.
WEIGHT_DECAY = 1e-4

_REMARKS = (
    "Neither the L2 coefficient nor the augmentation is stated for ImageNet: here 1e-4 on the weights alone, which "
    "the code of SkipInit's appendix G regularizes, and random crops and flips.",
    "Top-5 accuracies are those at the learning rate with the best top-1 accuracy.",
    f"The deviation of a single run on ImageNet is taken to be {IMAGENET_DEVIATION} points, that of five runs of "
    "ResNet-50 (Goyal et al. 2017, table 1).",
)


class ImageNetComparison(Comparison):
    """Methods at some batch sizes: `large` is the largest of them, `small` are the others."""

    @property
    def small(self) -> list[int]:
        """The other batch sizes, 256 and 1024 in the papers."""
        return self.sizes[:-1]

    @property
    def large(self) -> list[int]:
        """The largest batch size, 4096 in the papers."""
        return self.sizes[-1:]

    def reached(self, method: str, size: int, metric: str = "") -> Estimate:
        """Return the optimal top-1 accuracy in percent; single runs of the papers' set-up have a known deviation.

        NaN at a batch size at which batch norm learned too little to be a control.
        """
        control = self.runs.accuracy(**self.labels("batch_norm", size))
        if not is_control(control, chance_of(self.runs.table)):
            return UNKNOWN
        reached = super().reached(method, size, metric)
        return single_run(reached.mean) if reached.n == 1 and not self.runs.reduction else reached

    def within_points(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Check]:
        """Check that a method is less than so many points below another, at each batch size of the papers."""
        claim = f"{first} is less than {points:g} points below {second}"
        return list(map(self.as_printed, self.above(claim, first, second, sizes, by=-points)))

    def better_by(self, first: str, second: str, sizes: Sequence[int], points: float = 0.0) -> list[Check]:
        """Check that a method is above another; by so many points if the papers' set-up was run."""
        gap = f"more than {points:g} points above" if points > 0 else "above"
        checks = self.above(f"{first} is {gap} {second}", first, second, sizes, by=points)
        return list(map(self.as_printed, checks)) if points > 0 else checks

    def differ_by_less(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Check]:
        """Check that two methods differ by less than so many points, at each batch size of the papers."""
        claim, gaps = f"{first} and {second} differ by less than {points:g} points", []
        for size in sizes:
            gap = difference(self.reached(first, size), self.reached(second, size))
            gaps.append(self.as_printed(near(f"{claim} {self.at(size)}.", gap, 0.0, points)))
        return gaps

    def flat(self, method: str, points: float) -> list[Check]:
        """Check that a method loses less than so many points from the smallest batch size to any other."""
        first, *others = self.sizes
        claim = f"is less than {points:g} points below that at {first}."
        checks = [
            self.exceeds(f"{method} {self.at(size)} {claim}", (method, size), (method, first), by=-points)
            for size in others
        ]
        return list(map(self.as_printed, checks))

    def without_identity(self, unbiased: str, biased: str) -> list[Check]:
        """Check both papers' claims on ResNet-50-V1: a scalar bias mostly makes up for the ReLUs on its skip path.

        `unbiased` is the table's name of ZeroInit, `biased` that of ZeroInit with a scalar bias after the sum.
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
        return self.evidence(title, measured=table, on=("method", "batch_size"), remarks=_REMARKS)

    def _top5(self, row: Mapping[Any, Any]) -> float:
        """Return the mean top-5 accuracy in percent of the runs at an optimum of the top-1 accuracy."""
        if math.isnan(row["lr_log2"]):
            return math.nan
        runs = self.runs.chosen(**self.labels(row["method"], row["batch_size"]), rate=2.0 ** row["lr_log2"])
        return float(runs.nlargest(int(row["n"]), ACCURACY)["test_accuracy_top5"].mean())


def on_imagenet(
    context: Context, methods: Mapping[str, str], batch_sizes: Sequence[int], *, model: str, effort: Effort
) -> ImageNetComparison:
    """Carry out the runs of a table: the scheme of each method by its name, on a network given as text."""
    settings = {method: {"scheme": scheme, "weight_decay": WEIGHT_DECAY} for method, scheme in methods.items()}
    channels = "" if effort.channels is None else f", channels={effort.channels}"
    network: dict[str, Any] = {"model": f"{model.removesuffix(')')}{channels})", "ghost": GHOST_BATCH_SIZE}
    runs = over_batch_sizes(context, "imagenet", settings, batch_sizes, effort, metrics=(ACCURACY,), **network)
    return ImageNetComparison(**vars(runs))


def imagenet_table(
    id: str,  # noqa: A002 - as in `artefact`
    checks: Callable[[ImageNetComparison], Sequence[Check]],
    methods: Mapping[str, str],
    model: str,
    title: str,
) -> None:
    """Register the artefact that is a table of accuracies by method and batch size; see `on_imagenet`."""

    @artefact(id, basis="training", checks=checks)
    def measure(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
        return on_imagenet(context, methods, batch_sizes, model=model, effort=effort).accuracies(title)
