"""Batch norm, no normalization and ZeroInit over a wide range of batch sizes (section 3, figures 1 and 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from normless_papers.artefact import Context, artefact
from normless_papers.batch_size import ACCURACY, LOSS, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless_papers.estimates import difference, within
from normless_papers.evidence import Evidence
from normless_papers.networks import wide_resnet_text
from normless_papers.protocol import GHOST_BATCH_SIZE, METHODS, Effort
from normless_papers.verdict import Check, check, larger

COMPARED = ("batch_norm", "without_batch_norm", "zeroinit")
# Printed: log₂ of the rate that the test-optimal one saturates at.
SATURATION = {"without_batch_norm": -3, "zeroinit": 1, "batch_norm": 4}
LARGE_BATCH = 256


def _figure_1(runs: BatchRuns) -> list[Check]:
    agreed = [
        *runs.agree(ACCURACY, "batch_norm", "zeroinit", runs.up_to(LARGE_BATCH)),
        _critical(runs),
        *_alike(runs, runs.up_to(SMALL_BATCH)),
    ]
    return [
        *runs.larger_everywhere(ACCURACY, "batch_norm", "without_batch_norm", "(a) Batch norm is above no norm"),
        *runs.larger_everywhere(ACCURACY, "zeroinit", "without_batch_norm", "(a) ZeroInit is above no norm"),
        *(runs.falls(ACCURACY, method) for method in COMPARED),
        larger(
            "(a) From the smallest batch size to the largest ZeroInit loses more accuracy than batch norm.",
            runs.decline(ACCURACY, "zeroinit"),
            runs.decline(ACCURACY, "batch_norm"),
        ),
        *runs.larger_everywhere(LOSS, "zeroinit", "batch_norm", "(b) ZeroInit's loss is above batch norm's"),
        *runs.larger_everywhere(LOSS, "without_batch_norm", "batch_norm", "(b) No norm's loss is above batch norm's"),
        larger(
            "(b) From the smallest batch size to the largest the loss rises more without normalization than with "
            "ZeroInit.",
            runs.decline(LOSS, "zeroinit"),
            runs.decline(LOSS, "without_batch_norm"),
        ),
        *map(runs.as_printed, agreed),
    ]


@artefact("zeroinit/figure-1", basis="training", checks=_figure_1)
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss against the batch size."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="Optima over batch sizes", rates=False, remarks=_REMARKS)


def _figure_2(runs: BatchRuns) -> list[Check]:
    small, found = runs.up_to(LARGE_BATCH), {method: _saturation(runs, method) for method in COMPARED}
    return [
        *(runs.proportional(metric, method, small) for metric in (ACCURACY, LOSS) for method in COMPARED),
        *runs.similar_rates(ACCURACY, runs.up_to(SMALL_BATCH), 4),
        *(_ordered(found, *pair) for pair in (("zeroinit", "without_batch_norm"), ("batch_norm", "zeroinit"))),
        *(runs.as_printed(_saturates(method, found[method])) for method in COMPARED),
    ]


@artefact("zeroinit/figure-2", basis="training", checks=_figure_2)
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, then saturated."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    text = ", ".join(f"{method} {_saturation(runs, method):g}" for method in SATURATION)
    printed = pd.DataFrame([{"quantity": "saturation_of_the_test_optimal_lr_log2", "value": text}])
    table = pd.concat([printed, runs.table().assign(quantity="optimum")], ignore_index=True)
    return batch_evidence(runs, title="Optimal rate", rates=True, measured=table, on=("quantity",), remarks=_REMARKS)


def _range(runs: BatchRuns) -> list[Check]:
    first, last = runs.batch_sizes[0], runs.batch_sizes[-1]
    gain = runs.larger_everywhere(
        ACCURACY, "batch_norm", "without_batch_norm", "Batch norm's gain in accuracy is seen even", [first]
    )
    close = runs.agree(ACCURACY, "batch_norm", "zeroinit", [first])
    apart = runs.larger_everywhere(ACCURACY, "batch_norm", "zeroinit", "Batch norm is ahead of ZeroInit", [last])
    return [
        *runs.similar_rates(ACCURACY, [first], 2, ("batch_norm", "zeroinit")),
        runs.larger_rate("batch_norm", "zeroinit", last, 4),
        *gain,
        *apart,
        *map(runs.as_printed, close),
    ]


@artefact("zeroinit/batch-size-range", basis="training", checks=_range)
def one_batch_size_is_not_enough(
    context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort
) -> Evidence:
    """What is seen at one batch size is not what is seen at another: the larger rates at large ones alone."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    return batch_evidence(runs, title="What a batch size shows", rates=False, remarks=_REMARKS)


def ghost_runs(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> BatchRuns:
    """The runs of figures 1 and 2: 16-k Wide-ResNets, batch norm over ghost batches of 64."""
    return batch_runs(
        context,
        "batch-size",
        {method: METHODS[method] for method in COMPARED},
        batch_sizes,
        model=wide_resnet_text(16, width),
        effort=effort,
        ghost=GHOST_BATCH_SIZE,
    )


_REMARKS = (
    "Training losses include the L2 term: printed ones are too large for the cross entropy alone.",
    "The paper's batch sizes are only plotted; those of its budget here are the powers of two from 4 to 8192.",
)


def _critical(runs: BatchRuns) -> Check:
    """How much larger the batches are that batch norm can use."""
    sizes = {method: runs.critical(ACCURACY, method) for method in ("batch_norm", "zeroinit")}
    ratio = sizes["batch_norm"] / sizes["zeroinit"]
    # Two methods that are as good at the largest batch as anywhere have their critical sizes beyond it.
    unknown = math.isnan(ratio) or sizes["zeroinit"] == runs.batch_sizes[-1]
    return check(
        "(a) The largest batch size within 0.5 points of the best is at least 4 times larger with batch norm than "
        "with ZeroInit (about ten times in the paper).",
        None if unknown else ratio >= 4,
        ratio=ratio,
        **sizes,
    )


def _alike(runs: BatchRuns, sizes: Sequence[int]) -> list[Check]:
    """The losses of both unnormalized methods where batches are small."""
    return [
        within(
            f"(b) The losses of ZeroInit and without normalization differ by less than 0.05 at batch size {size}.",
            difference(runs.reached(LOSS, "zeroinit", size), runs.reached(LOSS, "without_batch_norm", size)),
            -0.05,
            0.05,
        )
        for size in sizes
    ]


def _saturation(runs: BatchRuns, method: str) -> float:
    """log₂ of the largest optimal rate over all batch sizes; NaN where an optimum is missing, or at an end."""
    exponents = [runs.exponent(ACCURACY, method, size) for size in runs.batch_sizes]
    return math.nan if any(map(math.isnan, exponents)) else max(exponents)


def _ordered(found: Mapping[str, float], higher: str, lower: str) -> Check:
    """Which method's rates saturate higher; undecided where they do at the same rate of the grid."""
    gap = found[higher] - found[lower]
    return check(
        f"The largest optimal learning rate of {higher} is above that of {lower}.",
        None if math.isnan(gap) or gap == 0 else gap > 0,
        **{name: 2 ** found[name] for name in (higher, lower)},
    )


def _saturates(method: str, exponent: float) -> Check:
    printed = SATURATION[method]
    return check(
        f"The optimal learning rate of {method} saturates at 2^{printed}, to a factor 2.",
        None if math.isnan(exponent) else abs(exponent - printed) <= 1,
        exponent=exponent,
    )
