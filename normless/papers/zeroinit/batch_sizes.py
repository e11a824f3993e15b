"""Batch norm, no normalization and ZeroInit over a wide range of batch sizes (section 3, figures 1 and 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.batch_size import ACCURACY, LOSS, SMALL_BATCH, BatchRuns, batch_evidence, batch_runs
from normless.papers.evidence import Evidence
from normless.papers.networks import wide_resnet_text
from normless.papers.protocol import GHOST_BATCH_SIZE, METHODS, Effort
from normless.papers.verdict import Check, check, larger

COMPARED = ("batch_norm", "without_batch_norm", "zeroinit")
# Printed: log₂ of the rate that the test-optimal one saturates at.
SATURATION = {"without_batch_norm": -3, "zeroinit": 1, "batch_norm": 4}
LARGE_BATCH = 256


@artefact("zeroinit/figure-1", basis="training")
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss against the batch size."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    upto, largest = runs.up_to(LARGE_BATCH), runs.batch_sizes[-1]
    loss = runs.optima[LOSS]
    at_largest = {method: loss.estimate(method=method, batch_size=largest) for method in COMPARED}
    checks = [
        *runs.agree(ACCURACY, "batch_norm", "zeroinit", upto),
        *runs.larger_everywhere(ACCURACY, "batch_norm", "without_batch_norm", "(a) Batch norm is above no norm"),
        *runs.larger_everywhere(ACCURACY, "zeroinit", "without_batch_norm", "(a) ZeroInit is above no norm"),
        *(runs.falls(ACCURACY, method) for method in COMPARED),
        _critical(runs),
        *runs.larger_everywhere(LOSS, "zeroinit", "batch_norm", "(b) ZeroInit's loss is above batch norm's"),
        *runs.larger_everywhere(LOSS, "without_batch_norm", "batch_norm", "(b) No norm's loss is above batch norm's"),
        *_alike(runs, upto),
        larger(
            f"(b) At batch size {largest} the loss without normalization is more than 0.05 above ZeroInit's.",
            at_largest["without_batch_norm"],
            at_largest["zeroinit"],
            by=0.05,
        ),
    ]
    return batch_evidence(runs, checks, title="Optima over batch sizes", rates=False, remarks=_REMARKS)


@artefact("zeroinit/figure-2", basis="training")
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, then saturated."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    small = runs.up_to(LARGE_BATCH)
    found = {method: _saturation(runs, method) for method in COMPARED}
    order = [found[method] for method in ("without_batch_norm", "zeroinit", "batch_norm")]
    unknown = any(math.isnan(one) for one in order) or len(effort.exponents) < 2
    ordered = check(
        "The largest optimal learning rate is higher with ZeroInit than without normalization, and with batch norm "
        "higher still.",
        None if unknown else order[0] < order[1] < order[2],
        **found,
    )
    checks = [
        *(runs.proportional(metric, method, small) for metric in (ACCURACY, LOSS) for method in COMPARED),
        *runs.similar_rates(ACCURACY, runs.up_to(SMALL_BATCH), 4),
        *(_saturates(method, found[method], effort) for method in COMPARED),
        ordered,
    ]
    text = ", ".join(f"{method} {found[method]:g}" for method in SATURATION)
    printed = pd.DataFrame([{"quantity": "saturation_of_the_test_optimal_lr_log2", "value": text}])
    table = pd.concat([printed, runs.table().assign(quantity="optimum")], ignore_index=True)
    return batch_evidence(
        runs, checks, title="Optimal rate", rates=True, measured=table, on=("quantity",), remarks=_REMARKS
    )


@artefact("zeroinit/batch-size-range", basis="training")
def one_batch_size_is_not_enough(
    context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort
) -> Evidence:
    """What is seen at one batch size is not what is seen at another: the larger rates at large ones alone."""
    runs = ghost_runs(context, batch_sizes, width, effort)
    first, last = runs.batch_sizes[0], runs.batch_sizes[-1]
    accuracy = runs.optima[ACCURACY]
    ratios = {
        size: 2 ** (accuracy.exponent(method="batch_norm", batch_size=size) - _unnormalized(runs, size))
        for size in (first, last)
    }
    unseen = check(
        f"At batch size {first} batch norm's optimal learning rate is at most 2 times that of ZeroInit, so that its "
        "larger stable rates are not seen there.",
        None if math.isnan(ratios[first]) or len(effort.exponents) < 2 else ratios[first] <= 2,
        factor=ratios[first],
    )
    seen = check(
        f"At batch size {last} it is at least 4 times as large, so that they are seen there.",
        None if math.isnan(ratios[last]) or len(effort.exponents) < 2 else ratios[last] >= 4,
        factor=ratios[last],
    )
    close = runs.agree(ACCURACY, "batch_norm", "zeroinit", [first])
    apart = runs.larger_everywhere(ACCURACY, "batch_norm", "zeroinit", "Batch norm is ahead of ZeroInit", [last])
    gain = runs.larger_everywhere(
        ACCURACY, "batch_norm", "without_batch_norm", "Batch norm's gain in accuracy is seen even", [first]
    )
    return batch_evidence(
        runs, (unseen, seen, *gain, *close, *apart), title="What a batch size shows", rates=False, remarks=_REMARKS
    )


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


def _unnormalized(runs: BatchRuns, size: int) -> float:
    return runs.optima[ACCURACY].exponent(method="zeroinit", batch_size=size)


def _critical(runs: BatchRuns) -> Check:
    """How much larger the batches are that batch norm can use."""
    sizes = {method: runs.critical(ACCURACY, method) for method in ("batch_norm", "zeroinit")}
    ratio, largest = sizes["batch_norm"] / sizes["zeroinit"], runs.batch_sizes[-1]
    # Two methods that are as good at the largest batch as anywhere have their critical sizes beyond it.
    single = runs.runs.sweeps[0].replicates < 2
    unknown = single or math.isnan(ratio) or sizes["zeroinit"] == largest
    return check(
        "(a) The largest batch size within 0.5 points of the best is at least 4 times larger with batch norm than "
        "with ZeroInit (about ten times in the paper).",
        None if unknown else ratio >= 4,
        ratio=ratio,
        **sizes,
    )


def _alike(runs: BatchRuns, sizes: Sequence[int]) -> list[Check]:
    """The losses of both unnormalized methods where batches are small."""
    found = runs.optima[LOSS]
    return [
        larger(
            f"(b) The loss of ZeroInit is within 0.05 of that without normalization at batch size {size}.",
            found.estimate(method="without_batch_norm", batch_size=size),
            found.estimate(method="zeroinit", batch_size=size),
            by=-0.05,
        )
        for size in sizes
        if size <= SMALL_BATCH
    ]


def _saturation(runs: BatchRuns, method: str) -> float:
    """log₂ of the largest optimal rate over all batch sizes; NaN where none trained."""
    held = [runs.optima[ACCURACY].exponent(method=method, batch_size=size) for size in runs.batch_sizes]
    return max((one for one in held if not math.isnan(one)), default=math.nan)


def _saturates(method: str, exponent: float, effort: Effort) -> Check:
    printed = SATURATION[method]
    return check(
        f"The optimal learning rate of {method} saturates at 2^{printed}, to a factor 2.",
        None if math.isnan(exponent) or len(effort.exponents) < 2 else abs(exponent - printed) <= 1,
        exponent=exponent,
    )
