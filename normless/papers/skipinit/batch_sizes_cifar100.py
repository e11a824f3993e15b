"""A 28-10 Wide-ResNet on CIFAR-100 over batch sizes, with ghost batches and without (appendix E, figures 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.batch_size import ACCURACY, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless.papers.evidence import Evidence
from normless.papers.networks import wide_resnet_text
from normless.papers.protocol import METHODS, Effort
from normless.papers.verdict import Check, check, larger

COMPARED = ("batch_norm", "skipinit", "regularized_skipinit")
GHOST = 32
BEST_BATCH = 16
_REMARKS = (
    "The figures' batch sizes are only plotted; those of the paper's budget here are the powers of two to 2048.",
)


@artefact("skipinit/figure-7", basis="training")
def ghost_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Optimal test accuracies and their rates, batch norm over ghost batches of 32; the bare network trains badly."""
    methods = (*COMPARED, "without_batch_norm")
    runs = _runs(context, methods, batch_sizes, depth, width, effort, GHOST)
    small, largest = runs.up_to(SMALL_BATCH), runs.batch_sizes[-1]
    found = runs.optima[ACCURACY]
    ahead = [
        one
        for method in COMPARED[1:]
        for one in runs.larger_everywhere(ACCURACY, "batch_norm", method, f"Batch norm is above {method}")
    ]
    unreliable = [
        found.does_not_train(
            f"Without batch norm or SkipInit the network cannot be trained reliably at batch size {size}.",
            against={"method": "batch_norm", "batch_size": size},
            method="without_batch_norm",
            batch_size=size,
        )
        for size in runs.batch_sizes
    ]
    larger_rates = [_larger_rate(runs, method, largest) for method in COMPARED[1:]]
    trained = replace(runs, methods={method: METHODS[method] for method in COMPARED})
    proportional = [runs.proportional(ACCURACY, method, small) for method in COMPARED]
    checks = [*ahead, *proportional, *trained.similar_rates(ACCURACY, small, 4), *larger_rates, *unreliable]
    return batch_evidence(runs, checks, title="Optima with ghost batches of 32", rates=False, remarks=_REMARKS)


@artefact("skipinit/figure-8", basis="training")
def whole_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """The same with statistics over the whole minibatch: batch norm is best at 16."""
    runs = _runs(context, COMPARED, batch_sizes, depth, width, effort, None)
    moderate = [size for size in runs.batch_sizes if SMALL_BATCH <= size <= 4 * SMALL_BATCH]
    found = runs.optima[ACCURACY]
    competitive = [
        larger(
            f"Regularized SkipInit comes within 1 point of batch norm at batch size {size}.",
            found.estimate(method="regularized_skipinit", batch_size=size),
            found.estimate(method="batch_norm", batch_size=size),
            by=-1.0,
        )
        for size in moderate
    ]
    better = runs.larger_everywhere(
        ACCURACY,
        "regularized_skipinit",
        "batch_norm",
        "Regularized SkipInit is above batch norm",
        runs.batch_sizes[:1],
    )
    peak = _best_batch(runs)
    printed = pd.DataFrame([{"quantity": "batch_norm_best_batch_size", "value": peak}])
    table = pd.concat([printed, runs.table().assign(quantity="optimum")], ignore_index=True)
    return batch_evidence(
        runs,
        [*_peak(runs), *better, *competitive],
        title="Optima with whole-batch statistics",
        rates=False,
        measured=table,
        on=("quantity",),
        remarks=_REMARKS,
    )


@artefact("skipinit/ghost-batch-size", basis="training")
def ghost_batch_size(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Batch norm over whole batches is best at 16; over ghost batches of 32 it does not fall at large batches."""
    whole = _runs(context, COMPARED, batch_sizes, depth, width, effort, None)
    ghost = _runs(context, COMPARED, batch_sizes, depth, width, effort, GHOST)
    largest = whole.batch_sizes[-1]
    one, other = whole.optima[ACCURACY], ghost.optima[ACCURACY]
    kept = larger(
        f"At batch size {largest} ghost batches of {GHOST} are better than statistics over the whole batch.",
        other.estimate(method="batch_norm", batch_size=largest),
        one.estimate(method="batch_norm", batch_size=largest),
    )
    peak = _best_batch(whole)
    tables = [
        pd.DataFrame(
            [{"quantity": "best_batch_size_when_statistics_use_full_minibatch", "value": peak, "statistics": "whole"}]
        ),
        whole.table().assign(quantity="optimum", statistics="whole batch"),
        ghost.table().assign(quantity="optimum", statistics=f"ghost batches of {GHOST}"),
    ]
    return batch_evidence(
        whole,
        [*_peak(whole), kept],
        title="Optima with whole-batch statistics",
        rates=False,
        measured=pd.concat(tables, ignore_index=True),
        on=("quantity",),
        remarks=(*_REMARKS, "The figure shows the whole-batch runs; those over ghost batches are in the table."),
    )


def _runs(
    context: Context,
    methods: Sequence[str],
    batch_sizes: Sequence[int],
    depth: int,
    width: int,
    effort: Effort,
    ghost: int | None,
) -> BatchRuns:
    return batch_runs(
        context,
        f"batch-size-{ghost or 'whole'}",
        {method: METHODS[method] for method in methods},
        batch_sizes,
        model=wide_resnet_text(depth, width),
        effort=effort,
        ghost=ghost,
        metrics=(ACCURACY,),
    )


def _best_batch(runs: BatchRuns) -> float:
    """The batch size at which batch norm's optimal test accuracy is highest; NaN where none trained."""
    means = {
        size: runs.optima[ACCURACY].estimate(method="batch_norm", batch_size=size).mean for size in runs.batch_sizes
    }
    known = {size: mean for size, mean in means.items() if not math.isnan(mean)}
    return float(max(known, key=known.__getitem__)) if known else math.nan


def _peak(runs: BatchRuns) -> list[Check]:
    """Batch norm is best at batch size 16 and worse at both ends."""
    best, found, ends = _best_batch(runs), runs.optima[ACCURACY], (runs.batch_sizes[0], runs.batch_sizes[-1])
    at_16 = check(
        f"Batch norm's test accuracy is highest at batch size {BEST_BATCH}.",
        None if math.isnan(best) else best == BEST_BATCH,
        best_batch_size=best,
    )
    top = found.estimate(method="batch_norm", batch_size=BEST_BATCH)
    lower = [
        larger(
            f"Its test accuracy at batch size {size} is below that at {BEST_BATCH}.",
            top,
            found.estimate(method="batch_norm", batch_size=size),
        )
        for size in ends
    ]
    return [at_16, *lower]


def _larger_rate(runs: BatchRuns, method: str, size: int) -> Check:
    found = runs.optima[ACCURACY]
    own = found.exponent(method=method, batch_size=size)
    normalized = found.exponent(method="batch_norm", batch_size=size)
    unknown = math.isnan(own) or math.isnan(normalized) or runs.runs.table["rate"].nunique() <= len(runs.batch_sizes)
    return check(
        f"At batch size {size} the optimal learning rate with batch norm is larger than with {method}.",
        None if unknown else normalized > own,
        batch_norm=2**normalized,
        other=2**own,
    )
