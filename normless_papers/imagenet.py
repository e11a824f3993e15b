"""ResNet-50 on ImageNet at three batch sizes, as both papers of De & Smith compare methods on it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from normless_papers.artefact import Context
from normless_papers.batch_size import ACCURACY, BatchRuns, batch_evidence, batch_runs
from normless_papers.estimates import IMAGENET_DEVIATION, difference, single_run, within
from normless_papers.evidence import Evidence
from normless_papers.protocol import Effort
from normless_papers.verdict import Check, Estimate, larger

GHOST_BATCH_SIZE = 256
# He et al.'s, with which their networks are usually trained; the papers do not state theirs for ImageNet. As in
# `PROTOCOL` it is on the weights alone.
WEIGHT_DECAY = 1e-4

_REMARKS = (
    "Neither the L2 coefficient nor the augmentation is stated for ImageNet: here 1e-4 on the weights alone, which "
    "the code of SkipInit's appendix G regularizes, and random crops and flips.",
    "Top-5 accuracies are those at the learning rate with the best top-1 accuracy.",
    f"Of a single run on ImageNet the deviation is taken to be {IMAGENET_DEVIATION} points, that of five runs of "
    "ResNet-50 (Goyal et al. 2017, table 1).",
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

    @property
    def every(self) -> list[int]:
        """All batch sizes."""
        return self.found.batch_sizes

    def top1(self, method: str, size: int) -> Estimate:
        """The optimal top-1 accuracy in percent; of single runs of the papers' set-up with their known deviation.

        NaN at a batch size where batch norm was trained too little to tell.
        """
        one = self.found.reached(ACCURACY, method, size)
        if self.found.is_too_short(size):
            return Estimate(math.nan, math.nan)
        return single_run(one.mean) if one.n == 1 and self.found.runs.whole else one

    def above(self, first: str, second: str, sizes: Sequence[int], *, by: float = 0.0) -> list[Check]:
        """That one method is above another at each batch size; by so many points where the papers' set-up was run."""
        gap = f"more than {by:g} points above" if by > 0 else "above"
        checks = [
            larger(
                f"{first} is {gap} {second} at batch size {size}.",
                self.top1(first, size),
                self.top1(second, size),
                by=by,
            )
            for size in sizes
        ]
        return [self.found.as_printed(one) for one in checks] if by > 0 else checks

    def competitive(self, first: str, second: str, sizes: Sequence[int], *, within: float) -> list[Check]:
        """That one method is less than so many points below another, at each batch size of the papers."""
        return [
            self.found.as_printed(
                larger(
                    f"{first} is less than {within:g} points below {second} at batch size {size}.",
                    self.top1(first, size),
                    self.top1(second, size),
                    by=-within,
                )
            )
            for size in sizes
        ]

    def alike(self, first: str, second: str, sizes: Sequence[int], *, apart: float) -> list[Check]:
        """That two methods differ by less than so many points, at each batch size of the papers."""
        return [
            self.found.as_printed(
                within(
                    f"{first} and {second} differ by less than {apart:g} points at batch size {size}.",
                    difference(self.top1(first, size), self.top1(second, size)),
                    -apart,
                    apart,
                )
            )
            for size in sizes
        ]

    def flat(self, method: str, *, within: float) -> list[Check]:
        """That a method loses less than so many points from its smallest batch size to any other of the papers'."""
        first, *others = self.every
        return [
            self.found.as_printed(
                larger(
                    f"{method} at batch size {size} is less than {within:g} points below that at {first}.",
                    self.top1(method, size),
                    self.top1(method, first),
                    by=-within,
                )
            )
            for size in others
        ]

    def without_identity(self, unbiased: str, biased: str) -> list[Check]:
        """What both papers say of ResNet-50-V1, whose skip path has ReLUs: the scalar bias makes up for most of it.

        Args:
            unbiased: ZeroInit, by the name of the table.
            biased: the same with a scalar bias after the merge.
        """
        return [
            *self.above("fixup", unbiased, self.every),
            *self.above("batch_norm", unbiased, self.every),
            *self.above(biased, unbiased, self.every),
            *self.above("batch_norm", "fixup", [self.large]),
            *self.above("fixup", unbiased, self.every, by=3.5),
            *self.above("batch_norm", "fixup", [self.large], by=2.0),
            *self.competitive("fixup", "batch_norm", self.small, within=2.0),
            *self.competitive(biased, "fixup", self.small, within=0.5),
            *self.flat("batch_norm", within=1.0),
        ]


def compared(
    context: Context, methods: Mapping[str, str], batch_sizes: Sequence[int], *, model: str, effort: Effort
) -> Comparison:
    """Carry out the runs of a table.

    Args:
        context: of the artefact.
        methods: the scheme of each method, by its name in the table.
        batch_sizes: of the table's rows.
        model: the network as text, with options.
        effort: how much of it, and with how many channels.
    """
    settings = {method: {"scheme": scheme, "weight_decay": WEIGHT_DECAY} for method, scheme in methods.items()}
    found = batch_runs(
        context,
        "imagenet",
        settings,
        batch_sizes,
        model=_narrowed(model, effort.channels),
        effort=effort,
        ghost=GHOST_BATCH_SIZE,
        metrics=(ACCURACY,),
    )
    return Comparison(found)


def imagenet_evidence(comparison: Comparison, *, title: str) -> Evidence:
    """The evidence of a table of top-1 and top-5 accuracies by method and batch size."""
    found = comparison.found
    table = found.optima[ACCURACY].published_columns("top1")
    table["top5"] = [_top5(found, row) for row in table.to_dict("records")]
    evidence = batch_evidence(
        found, title=title, rates=False, measured=table, on=("method", "batch_size"), remarks=_REMARKS
    )
    return replace(evidence, facts=comparison)


def _narrowed(model: str, channels: int | None) -> str:
    """The text of a network with fewer channels, or as it is."""
    return model if channels is None else f"{model.removesuffix(')')}, channels={channels})"


def _top5(found: BatchRuns, row: Mapping[Hashable, float]) -> float:
    """Mean top-5 accuracy in percent of the runs that the top-1 accuracy of an optimum is the mean of."""
    runs = found.runs.table
    if math.isnan(row["lr_log2"]):
        return math.nan
    at = (runs["method"] == row["method"]) & (runs["batch_size"].astype(int) == row["batch_size"])
    kept: pd.DataFrame = runs[at & (runs["rate"] == 2.0 ** row["lr_log2"])].nlargest(int(row["n"]), ACCURACY)
    return 100 * float(kept["test_accuracy_top5"].astype(float).mean())
