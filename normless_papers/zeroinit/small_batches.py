"""The limit of small batches, with batch statistics over the whole minibatch (section 4, figure 3; figure 4)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.batch_size import ACCURACY, LOSS, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless_papers.evidence import Evidence
from normless_papers.networks import wide_resnet_text
from normless_papers.protocol import METHODS, Effort
from normless_papers.verdict import Check, above_zero, check, larger
from normless_papers.zeroinit.batch_sizes import COMPARED, LARGE_BATCH

_REMARKS = ("Training losses include the L2 term: printed ones are too large for the cross entropy alone.",)


def _figure_3(runs: BatchRuns) -> list[Check]:
    smallest = runs.batch_sizes[:1]
    large = [size for size in runs.batch_sizes if size > LARGE_BATCH] or runs.batch_sizes[-1:]
    usual = [size for size in runs.batch_sizes if size >= SMALL_BATCH]
    return [
        *runs.larger_everywhere(ACCURACY, "zeroinit", "batch_norm", "(a) ZeroInit is above batch norm", smallest),
        *runs.larger_everywhere(ACCURACY, "batch_norm", "zeroinit", "(a) Batch norm is above ZeroInit", large),
        larger(
            f"(a) Batch norm's accuracy at batch size {smallest[0]} is below that at {SMALL_BATCH}.",
            runs.reached(ACCURACY, "batch_norm", SMALL_BATCH),
            runs.reached(ACCURACY, "batch_norm", smallest[0]),
        ),
        # Of the losses where batch norm suffers from small batches the text says nothing.
        *runs.larger_everywhere(LOSS, "zeroinit", "batch_norm", "(b) ZeroInit's loss is above batch norm's", usual),
        runs.as_printed(_constant(runs, runs.up_to(LARGE_BATCH))),
    ]


@artefact("zeroinit/figure-3", basis="training", checks=_figure_3)
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss, down to batch size 1."""
    runs = whole_batch_runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="Optima with whole-batch statistics", rates=False, remarks=_REMARKS)


def _figure_4(runs: BatchRuns) -> list[Check]:
    small = runs.up_to(SMALL_BATCH)
    return [
        one
        for metric in (ACCURACY, LOSS)
        for one in (
            *(runs.proportional(metric, method, small) for method in COMPARED),
            *runs.similar_rates(metric, small, 4),
        )
    ]


@artefact("zeroinit/figure-4", basis="training", checks=_figure_4)
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, and alike for all methods."""
    runs = whole_batch_runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="Optimal rate", rates=True, remarks=_REMARKS)


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
    """ZeroInit's accuracy does not depend on small batch sizes.

    The means at all sizes lie within one standard deviation of their mean; it fails only where one lies further from
    it at 95 %, and is inconclusive between.
    """
    reached = [runs.reached(ACCURACY, "zeroinit", size) for size in sizes]
    middle = sum(one.mean for one in reached) / len(reached)
    deviation = max(one.deviation for one in reached)
    gaps = [abs(one.mean - middle) for one in reached]
    beyond = [
        above_zero(gap - deviation, [one.deviation**2 / one.n], [one.n])
        for gap, one in zip(gaps, reached, strict=True)
    ]
    return check(
        f"(a) ZeroInit's accuracies up to batch size {LARGE_BATCH} lie within a standard deviation of their mean.",
        True if all(gap <= deviation for gap in gaps) else False if any(beyond) else None,
        largest_gap=max(gaps),
        deviation=deviation,
    )
