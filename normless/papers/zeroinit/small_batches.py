"""The limit of small batches, with batch statistics over the whole minibatch (section 4, figure 3; figure 4)."""

from __future__ import annotations

from collections.abc import Sequence

from normless.papers.artefact import Context, artefact
from normless.papers.batch_size import ACCURACY, LOSS, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless.papers.evidence import Evidence
from normless.papers.networks import wide_resnet_text
from normless.papers.protocol import METHODS, Effort
from normless.papers.verdict import Check, check, larger
from normless.papers.zeroinit.batch_sizes import COMPARED, LARGE_BATCH

_REMARKS = ("Training losses include the L2 term: printed ones are too large for the cross entropy alone.",)


@artefact("zeroinit/figure-3", basis="training")
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss, down to batch size 1."""
    runs = whole_batch_runs(context, batch_sizes, width, effort)
    below = [size for size in runs.batch_sizes if size < SMALL_BATCH]
    beyond = [size for size in runs.batch_sizes if size > LARGE_BATCH]
    checks = [
        _constant(runs, runs.up_to(LARGE_BATCH)),
        *runs.larger_everywhere(ACCURACY, "zeroinit", "batch_norm", "(a) ZeroInit is above batch norm", below[:1]),
        *runs.larger_everywhere(ACCURACY, "batch_norm", "zeroinit", "(a) Batch norm is above ZeroInit", beyond),
        *_drop(runs, below[:1]),
        *runs.larger_everywhere(LOSS, "zeroinit", "batch_norm", "(b) ZeroInit's loss is above batch norm's"),
    ]
    return batch_evidence(runs, checks, title="Optima with whole-batch statistics", rates=False, remarks=_REMARKS)


@artefact("zeroinit/figure-4", basis="training")
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, and alike for all methods."""
    runs = whole_batch_runs(context, batch_sizes, width, effort)
    small = runs.up_to(SMALL_BATCH)
    checks = [
        one
        for metric in (ACCURACY, LOSS)
        for one in (
            *(runs.proportional(metric, method, small) for method in COMPARED),
            *runs.similar_rates(metric, small, 4),
        )
    ]
    return batch_evidence(runs, checks, title="Optimal rate", rates=True, remarks=_REMARKS)


def whole_batch_runs(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> BatchRuns:
    """The runs of figures 3 and 4; those without normalization are those of figures 1 and 2 too."""
    return batch_runs(
        context,
        "whole-batch",
        {method: METHODS[method] for method in COMPARED},
        batch_sizes,
        model=wide_resnet_text(16, width),
        effort=effort,
        ghost=None,
    )


def _constant(runs: BatchRuns, sizes: Sequence[int]) -> Check:
    """ZeroInit's accuracy does not depend on small batch sizes: all lie within a deviation of each other."""
    held = [runs.optima[ACCURACY].estimate(method="zeroinit", batch_size=size) for size in sizes]
    spread = max(one.mean for one in held) - min(one.mean for one in held)
    deviation = max(one.deviation for one in held)
    known = all(one.deviation >= 0 for one in held) and spread >= 0
    return check(
        f"(a) ZeroInit's accuracies at batch sizes up to {LARGE_BATCH} lie within one standard deviation.",
        spread <= deviation if known else None,
        spread=spread,
        deviation=deviation,
    )


def _drop(runs: BatchRuns, sizes: Sequence[int]) -> list[Check]:
    """Batch norm suffers from small batches: its accuracy there against that at the edge of the claimed range."""
    found = runs.optima[ACCURACY]
    checks = []
    for size in sizes:
        there = found.estimate(method="batch_norm", batch_size=size)
        usual = found.estimate(method="batch_norm", batch_size=SMALL_BATCH)
        checks.append(
            larger(
                f"(a) Batch norm's accuracy at batch size {size} is below that at {SMALL_BATCH}.",
                usual,
                there,
            )
        )
    return checks
