"""The figures over batch sizes of the SkipInit and ZeroInit papers.

They print no numbers but log₂ of three rates; all else is made up as the texts have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from papers_runs import Optimum

from normless_papers.experiments.de_smith import METHODS
from normless_papers.experiments.de_smith_claims import BEST_BATCH
from normless_papers.published import published_as
from normless_papers.skipinit.training import GHOST
from worlds.world import World, size_of, trained

_PRINTED = published_as("zeroinit/figure-2").rows[0]["value"]
SATURATION = {
    "none": _PRINTED["without_batch_norm"],
    "skipinit": _PRINTED["zeroinit"],
    "zeroinit": _PRINTED["zeroinit"],
    "batch_norm": _PRINTED["batch_norm"],
}
CRITICAL = {"none": 6, "skipinit": 8, "zeroinit": 8, "batch_norm": 12}
BEST = {"none": 92.3, "skipinit": 94.0, "zeroinit": 94.45, "batch_norm": 94.5}
LOSSES = {"none": 0.212, "skipinit": 0.19, "zeroinit": 0.19, "batch_norm": 0.17}
# On the grids of all these sizes every optimum lies inside.
SIZES = (4, 8, 16, 64, 256, 2048, 8192)
SMALL_SIZES = (2, 8, 16, 64, 256, 512)


def scheme_of(labels: Mapping[str, str]) -> str:
    """The scheme of a run, by the name of its method."""
    return str(METHODS[labels["method"]]["scheme"])


def as_said(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Rates proportional to the batch size up to saturation, accuracies that fall beyond a critical batch size."""
    scheme, size = scheme_of(labels), math.log2(size_of(labels))
    rate = min(round(size - 7), SATURATION[scheme])
    beyond = max(0.0, size - CRITICAL[scheme])
    if metric == "test_accuracy":
        return Optimum(BEST[scheme] - 1.0 * beyond, rate, deviation=0.2)
    return Optimum(LOSSES[scheme] + 0.03 * beyond, rate, deviation=0.0005)


def not_as_said(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Batch norm is worst, no norm best; large batches help, ZeroInit most; rates do not follow the batch size."""
    scheme, size = scheme_of(labels), math.log2(size_of(labels))
    small, large = (-7, -6) if scheme == "batch_norm" else (-4, 0) if scheme == "none" else (-4, -4)
    rate = small if size <= 8 else large
    gain = {"none": 0.1, "skipinit": 0.3, "zeroinit": 0.3, "batch_norm": 0.1}[scheme] * size
    if metric == "test_accuracy":
        best = {"none": 92.0, "skipinit": 85.0, "zeroinit": 85.0, "batch_norm": 80.0}[scheme]
        return Optimum(best + gain, rate, deviation=0.1)
    loss = {"none": 0.22, "skipinit": 0.2, "zeroinit": 0.1, "batch_norm": 0.3}[scheme]
    return Optimum(loss + (0.008 * size if scheme == "zeroinit" else 0.0), rate, deviation=0.0005)


def whole_batches(metric: str, labels: Mapping[str, str]) -> Optimum:
    """As said, and batch norm over whole batches loses accuracy below 64, where statistics are over few examples."""
    usual, size = as_said(metric, labels), math.log2(size_of(labels))
    if scheme_of(labels) != "batch_norm" or metric != "test_accuracy":
        return usual
    return Optimum(94.7 - 0.5 * max(0.0, 6 - size), usual.exponent, deviation=0.2)


def small_batches_are_best(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Batch norm gains from small batches and is behind at large ones; ZeroInit's accuracy depends on the batch."""
    scheme, size = scheme_of(labels), math.log2(size_of(labels))
    rate = {"none": -3, "zeroinit": -5, "batch_norm": -6}[scheme]
    if metric != "test_accuracy":
        return Optimum(0.3 if scheme == "batch_norm" else 0.1, rate, deviation=0.001)
    accuracy = {"none": 80.0, "zeroinit": 80.0 + size, "batch_norm": 92.0 - 2 * size}[scheme]
    return Optimum(accuracy, rate, deviation=0.1)


def only_batch_norm_at_64_trains(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Nothing else trains, and its best rate lies beyond the grid."""
    trains = labels["method"] == "batch_norm" and size_of(labels) == 64
    if not trains:
        return Optimum(None)
    return Optimum(90.0 if metric == "test_accuracy" else 0.2, exponent=30)


def cifar100(metric: str, labels: Mapping[str, str]) -> Optimum:
    """As said, batch norm ahead everywhere; without it and without SkipInit every run diverges."""
    usual, scheme = as_said(metric, labels), scheme_of(labels)
    if scheme == "none":
        return Optimum(None)
    behind = {"batch_norm": 14.0, "zeroinit": 16.0, "skipinit": 18.0}[scheme]
    value = usual.value if metric != "test_accuracy" or usual.value is None else usual.value - behind
    return Optimum(value, usual.exponent, usual.deviation)


def best_at_16(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Statistics over the whole batch: batch norm is best at 16, over ghost batches it keeps that; others as said."""
    usual = as_said(metric, labels)
    if labels["method"] != "batch_norm" or metric != "test_accuracy":
        return usual
    shared = min(size_of(labels), int(labels.get("ghost", size_of(labels))))
    return Optimum(95.0 - 0.4 * abs(math.log2(shared / BEST_BATCH)), usual.exponent, deviation=0.05)


def worst_at_16(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Whole batches: batch norm is worst at 16 and ahead of all others; ghost batches lose with the batch size."""
    if labels["method"] != "batch_norm":
        return Optimum(80.0 if metric == "test_accuracy" else 0.2)
    if metric != "test_accuracy":
        return Optimum(0.2)
    size = math.log2(size_of(labels))
    ghost = 85.0 - size
    whole = 90.0 + abs(size - math.log2(BEST_BATCH))
    return Optimum(ghost if labels.get("ghost") == str(GHOST) else whole, deviation=0.05)


WORLDS: dict[str, World] = {
    "zeroinit/figure-1": trained("zeroinit/figure-1", as_said, not_as_said, batch_sizes=SIZES),
    "zeroinit/figure-2": trained("zeroinit/figure-2", as_said, not_as_said, batch_sizes=SIZES),
    "zeroinit/batch-size-range": trained(
        "zeroinit/batch-size-range", as_said, not_as_said, batch_sizes=(4, 64, 8192)
    ),
    "zeroinit/figure-3": trained("zeroinit/figure-3", whole_batches, small_batches_are_best, batch_sizes=SMALL_SIZES),
    "zeroinit/figure-4": trained("zeroinit/figure-4", whole_batches, not_as_said, batch_sizes=SMALL_SIZES),
    "skipinit/figure-4": trained(
        "skipinit/figure-4", whole_batches, only_batch_norm_at_64_trains, batch_sizes=SMALL_SIZES
    ),
    "skipinit/figure-6": trained("skipinit/figure-6", whole_batches, not_as_said, batch_sizes=SMALL_SIZES),
    "skipinit/figure-7": trained("skipinit/figure-7", cifar100, not_as_said, batch_sizes=(4, 8, 16, 64, 2048)),
    "skipinit/figure-8": trained("skipinit/figure-8", best_at_16, worst_at_16, batch_sizes=SMALL_SIZES),
    "skipinit/ghost-batch-size": trained(
        "skipinit/ghost-batch-size", best_at_16, worst_at_16, batch_sizes=SMALL_SIZES
    ),
}
