"""A 28-10 Wide-ResNet on CIFAR-100 over batch sizes, with ghost batches and without (appendix E, figures 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, optimum_against
from normless_papers.artefact import Context, artefact
from normless_papers.batch_size import ACCURACY, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless_papers.evidence import Evidence
from normless_papers.networks import wide_resnet_text
from normless_papers.protocol import METHODS, Effort
from normless_papers.verdict import Check, check, larger

COMPARED = ("batch_norm", "skipinit", "regularized_skipinit")
GHOST = 32
BEST_BATCH = 16
_REMARKS = (
    "The figures' batch sizes are only plotted; those of the paper's budget here are the powers of two to 2048.",
)


def _figure_7(runs: BatchRuns) -> list[Check]:
    small, largest, found = runs.up_to(SMALL_BATCH), runs.batch_sizes[-1], runs.optima[ACCURACY]
    ahead = [
        one
        for method in COMPARED[1:]
        for one in runs.larger_everywhere(ACCURACY, "batch_norm", method, f"Batch norm is above {method}")
    ]
    unreliable = [
        larger(
            f"Without batch norm and without SkipInit the network is less accurate than with SkipInit at {size}.",
            found.accuracy(method="skipinit", batch_size=size),
            found.accuracy(method="without_batch_norm", batch_size=size),
        )
        for size in runs.batch_sizes
    ]
    return [
        *ahead,
        *(runs.proportional(ACCURACY, method, small) for method in COMPARED),
        *runs.similar_rates(ACCURACY, small, 4, COMPARED),
        *(runs.larger_rate("batch_norm", method, largest) for method in COMPARED[1:]),
        *unreliable,
    ]


@artefact("skipinit/figure-7", basis="training", checks=_figure_7)
def ghost_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Optimal test accuracies and their rates, batch norm over ghost batches of 32; the bare network trains badly."""
    runs = _runs(context, (*COMPARED, "without_batch_norm"), batch_sizes, depth, width, effort, GHOST)
    return batch_evidence(runs, title="Optima with ghost batches of 32", rates=False, remarks=_REMARKS)


def _figure_8(runs: BatchRuns) -> list[Check]:
    moderate = [size for size in runs.batch_sizes if SMALL_BATCH <= size <= 4 * SMALL_BATCH]
    lower = [
        larger(
            f"Batch norm's test accuracy at batch size {size} is below that at {BEST_BATCH}.",
            runs.reached(ACCURACY, "batch_norm", BEST_BATCH),
            runs.reached(ACCURACY, "batch_norm", size),
        )
        for size in (runs.batch_sizes[0], runs.batch_sizes[-1])
    ]
    better = runs.larger_everywhere(
        ACCURACY,
        "regularized_skipinit",
        "batch_norm",
        "Regularized SkipInit is above batch norm",
        runs.batch_sizes[:1],
    )
    competitive = [
        larger(
            f"Regularized SkipInit comes within 1 point of batch norm at batch size {size}.",
            runs.reached(ACCURACY, "regularized_skipinit", size),
            runs.reached(ACCURACY, "batch_norm", size),
            by=-1.0,
        )
        for size in moderate
    ]
    return [*lower, *better, runs.as_printed(_peak(runs)), *map(runs.as_printed, competitive)]


@artefact("skipinit/figure-8", basis="training", checks=_figure_8)
def whole_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """The same with statistics over the whole minibatch: batch norm is best at 16."""
    runs = _runs(context, COMPARED, batch_sizes, depth, width, effort, None)
    printed = pd.DataFrame([{"quantity": "batch_norm_best_batch_size", "value": _best_batch(runs)}])
    table = pd.concat([printed, runs.table().assign(quantity="optimum")], ignore_index=True)
    return batch_evidence(
        runs,
        title="Optima with whole-batch statistics",
        rates=False,
        measured=table,
        on=("quantity",),
        remarks=_REMARKS,
    )


@dataclass(frozen=True)
class Statistics:
    """Batch norm over batch sizes, with statistics over the whole batch and over ghost batches."""

    whole: BatchRuns
    ghost: BatchRuns


def _ghost_batch_size(facts: Statistics) -> list[Check]:
    largest = facts.whole.batch_sizes[-1]
    return [
        larger(
            f"At batch size {largest} ghost batches of {GHOST} are better than statistics over the whole batch.",
            facts.ghost.reached(ACCURACY, "batch_norm", largest),
            facts.whole.reached(ACCURACY, "batch_norm", largest),
        ),
        larger(
            f"From batch size {BEST_BATCH} to {largest} batch norm loses more with statistics over the whole batch "
            f"than over ghost batches of {GHOST}.",
            facts.whole.decline(ACCURACY, "batch_norm", BEST_BATCH),
            facts.ghost.decline(ACCURACY, "batch_norm", BEST_BATCH),
        ),
        facts.whole.as_printed(_peak(facts.whole)),
    ]


@artefact("skipinit/ghost-batch-size", basis="training", checks=_ghost_batch_size)
def ghost_batch_size(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Batch norm alone: over whole batches it is best at 16; over ghost batches of 32 it keeps what it reaches."""
    whole, ghost = (_runs(context, COMPARED[:1], batch_sizes, depth, width, effort, size) for size in (None, GHOST))
    names = {"whole batch": whole, f"ghost batches of {GHOST}": ghost}
    optima = pd.concat(
        [runs.optima[ACCURACY].table.assign(statistics=name) for name, runs in names.items()], ignore_index=True
    )
    tables = [runs.table().assign(quantity="optimum", statistics=name) for name, runs in names.items()]
    printed = pd.DataFrame(
        [{"quantity": "best_batch_size_when_statistics_use_full_minibatch", "value": _best_batch(whole)}]
    )

    def draw() -> Axes:
        inks = inks_of({"whole batch": "batch_norm", f"ghost batches of {GHOST}": "batch_norm"})
        style: dict[str, Any] = {"series": "statistics", "across": "batch_size", "inks": inks}
        return optimum_against(optima, title="Batch norm and its statistics", up="test accuracy (%)", **style)

    evidence = batch_evidence(
        whole,
        title="",
        rates=False,
        measured=pd.concat([printed, *tables], ignore_index=True),
        on=("quantity",),
        remarks=_REMARKS,
    )
    return replace(evidence, facts=Statistics(whole, ghost), draw=draw)


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
    """The batch size at which batch norm's optimal test accuracy is highest; NaN where one is missing."""
    means = {size: runs.reached(ACCURACY, "batch_norm", size).mean for size in runs.batch_sizes}
    return math.nan if any(map(math.isnan, means.values())) else float(max(means, key=means.__getitem__))


def _peak(runs: BatchRuns) -> Check:
    """No batch size is better than 16; inconclusive where another is, and cannot be told from it."""
    best = _best_batch(runs)
    claim = f"Batch norm's test accuracy is highest at batch size {BEST_BATCH}."
    if math.isnan(best) or BEST_BATCH not in runs.batch_sizes:
        return check(claim, None, best_batch_size=best)
    better = larger(
        claim, runs.reached(ACCURACY, "batch_norm", int(best)), runs.reached(ACCURACY, "batch_norm", BEST_BATCH)
    )
    holds = True if best == BEST_BATCH else False if better.verdict == "holds" else None
    return check(claim, holds, best_batch_size=best, at_best=better.numbers["claimed_larger"])
