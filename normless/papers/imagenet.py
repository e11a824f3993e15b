"""ResNet-50 on ImageNet at three batch sizes, as both papers of De & Smith compare methods on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.papers.artefact import Context
from normless.papers.batch_size import ACCURACY, BatchRuns, batch_evidence, batch_runs
from normless.papers.evidence import Evidence
from normless.papers.protocol import SMOKE, Effort
from normless.papers.verdict import Check, Estimate, larger

BATCH_SIZES = (256, 1024, 4096)
GHOST_BATCH_SIZE = 256
# He et al.'s, with which their networks are usually trained; the papers do not state theirs for ImageNet. As in
# `PROTOCOL` it is on the weights alone.
WEIGHT_DECAY = 1e-4

# One run per rate, as printed. The rates are those at batch size 64.
PAPER = Effort(data="image_folder", epochs=90, exponents=tuple(range(-7, -2)), replicates=1, best=1)
SMALL = Effort(
    data="cifar10(side=16, train=1280, test=1000)",
    epochs=3,
    exponents=(-6, -4),
    replicates=2,
    best=2,
    extensions=0,
    crop=2,
    whole=False,
)
FEW_IMAGES = Effort(data="digits(train=256)", epochs=1, exponents=SMOKE.exponents, replicates=2, best=2, whole=False)
BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"batch_sizes": (32, 128), "effort": FEW_IMAGES},
    "small": {"batch_sizes": (32, 128), "effort": SMALL},
    "paper": {"batch_sizes": BATCH_SIZES, "effort": PAPER},
}

_REMARKS = (
    "Neither the L2 coefficient nor the augmentation is stated for ImageNet: here 1e-4 on the weights alone, which "
    "the code of SkipInit's appendix G regularizes, and random crops and flips.",
    "Top-5 accuracies are those at the learning rate with the best top-1 accuracy.",
)


@dataclass(frozen=True)
class Comparison:
    """Methods compared at some batch sizes: `large` is the largest of them and `small` are the others."""

    found: BatchRuns

    @property
    def small(self) -> list[int]:
        """256 and 1024 in the papers."""
        return self.found.batch_sizes[:-1]

    @property
    def large(self) -> int:
        """4096 in the papers."""
        return self.found.batch_sizes[-1]

    def top1(self, method: str, size: int) -> Estimate:
        """The optimal top-1 accuracy in percent."""
        return self.found.optima[ACCURACY].estimate(method=method, batch_size=size)

    def above(self, first: str, second: str, sizes: Sequence[int], *, by: float = 0.0) -> list[Check]:
        """That one method is more than so many points above another, at each batch size."""
        gap = f"more than {by:g} points above" if by > 0 else "above"
        return [
            larger(
                f"{first} is {gap} {second} at batch size {size}.",
                self.top1(first, size),
                self.top1(second, size),
                by=by,
            )
            for size in sizes
        ]

    def alike(self, first: str, second: str, sizes: Sequence[int], *, within: float) -> list[Check]:
        """That neither method is more than so many points above the other, at each batch size."""
        return [
            larger(
                f"{one} is less than {within:g} points below {other} at batch size {size}.",
                self.top1(one, size),
                self.top1(other, size),
                by=-within,
            )
            for size in sizes
            for one, other in ((first, second), (second, first))
        ]

    def flat(self, method: str, *, within: float) -> list[Check]:
        """That a method loses less than so many points from its smallest batch size to any other."""
        first, *others = self.found.batch_sizes
        return [
            larger(
                f"{method} at batch size {size} is less than {within:g} points below that at {first}.",
                self.top1(method, size),
                self.top1(method, first),
                by=-within,
            )
            for size in others
        ]


def compared(
    context: Context, methods: Mapping[str, str], batch_sizes: Sequence[int], *, model: str, effort: Effort
) -> Comparison:
    """Carry out the runs of a table.

    Args:
        context: of the artefact.
        methods: the scheme of each method, by its name in the table.
        batch_sizes: of the table's rows.
        model: the network as text.
        effort: how much of it.
    """
    settings = {method: {"scheme": scheme, "weight_decay": WEIGHT_DECAY} for method, scheme in methods.items()}
    found = batch_runs(
        context,
        "imagenet",
        settings,
        batch_sizes,
        model=model,
        effort=effort,
        ghost=GHOST_BATCH_SIZE,
        metrics=(ACCURACY,),
    )
    return Comparison(found)


def imagenet_evidence(comparison: Comparison, checks: Sequence[Check], *, title: str) -> Evidence:
    """The evidence of a table of top-1 and top-5 accuracies by method and batch size."""
    found = comparison.found
    table = found.optima[ACCURACY].published_columns("top1")
    table["top5"] = [_top5(found, row) for row in table.to_dict("records")]
    return batch_evidence(
        found, checks, title=title, rates=False, measured=table, on=("method", "batch_size"), remarks=_REMARKS
    )


def _top5(found: BatchRuns, row: Mapping[Any, Any]) -> float:
    """Mean top-5 accuracy in percent of the runs that the top-1 accuracy of an optimum is the mean of."""
    runs = found.runs.table
    if math.isnan(row["lr_log2"]):
        return math.nan
    at = (runs["method"] == row["method"]) & (runs["batch_size"].astype(int) == row["batch_size"])
    kept: pd.DataFrame = runs[at & (runs["rate"] == 2.0 ** row["lr_log2"])].nlargest(int(row["n"]), ACCURACY)
    return 100 * float(kept["test_accuracy_top5"].astype(float).mean())
