"""SkipInit, its regularized form and batch norm over batch sizes on CIFAR-10 (figures 4 and 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.batch_size import ACCURACY, LOSS, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless_papers.evidence import Evidence
from normless_papers.networks import wide_resnet_text
from normless_papers.protocol import METHODS, Effort
from normless_papers.verdict import Check, check

COMPARED = ("skipinit", "regularized_skipinit", "batch_norm")
_REMARKS = (
    "The figure's batch sizes are only plotted; those of the paper's budget here are those of zeroinit/figure-3, "
    "whose runs with batch norm and with ZeroInit (Regularized SkipInit) are the same.",
    "Training losses include the L2 term, as those of zeroinit/figure-3.",
)


def _figure_4(runs: BatchRuns) -> list[Check]:
    # Of batch norm at 64 nothing is asked: it is what batch norm at the other sizes is compared with.
    return [
        *(
            runs.trains(method, size)
            for method in COMPARED
            for size in runs.batch_sizes
            if (method, size) != ("batch_norm", SMALL_BATCH)
        ),
        *(runs.as_printed(_inside(runs, metric)) for metric in (ACCURACY, LOSS)),
    ]


@artefact("skipinit/figure-4", basis="training", checks=_figure_4)
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracy and training loss as functions of the batch size; all methods train at every one."""
    runs = _runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="Optima over batch sizes", rates=False, remarks=_REMARKS)


def _figure_6(runs: BatchRuns) -> list[Check]:
    small = [size for size in runs.batch_sizes if size < SMALL_BATCH]
    return [one for metric in (ACCURACY, LOSS) for one in runs.similar_rates(metric, small, 2)]


@artefact("skipinit/figure-6", basis="training", checks=_figure_6)
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: at small batch sizes those of the three methods are alike."""
    runs = _runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="Optimal rate", rates=True, remarks=_REMARKS)


def _runs(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> BatchRuns:
    return batch_runs(
        context,
        "skipinit-batch-size",
        {method: METHODS[method] for method in COMPARED},
        batch_sizes,
        model=wide_resnet_text(16, width),
        effort=effort,
        ghost=None,
    )


def _inside(runs: BatchRuns, metric: str) -> Check:
    """Optima are such only inside the grid."""
    table = runs.optima[metric].table
    edges = int((table["edge"] != "").sum())
    return check(
        f"No optimum by {metric.replace('_', ' ')} lies at an end of the learning rates tried.",
        None if math.isinf(runs.step) else not edges,
        at_an_end=edges,
        optima=len(table),
    )
