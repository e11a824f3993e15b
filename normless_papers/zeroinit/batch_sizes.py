"""Batch norm, no normalization and ZeroInit over batch sizes: ghost batches (section 3), whole ones (section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, above_zero, check, difference, larger, within
from normless_papers.comparison import SMALL_BATCH, Comparison
from normless_papers.de_smith import ACCURACY, GHOST_BATCH_SIZE, LOSS, over_batch_sizes, wide_resnet_text
from normless_papers.effort import Effort
from normless_papers.published import published_as

COMPARED = ("batch_norm", "without_batch_norm", "zeroinit")
LARGE_BATCH = 256
_LOSSES = "Training losses include the L2 term: printed ones are too large for the cross entropy alone."
_SIZES = "The paper's batch sizes are only plotted; those of its budget here are the powers of two from 4 to 8192."


def _ghost_batches(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> Comparison:
    """The runs of figures 1 and 2: 16-k Wide-ResNets, batch norm over ghost batches of 64."""
    model = wide_resnet_text(16, width)
    return over_batch_sizes(context, "batch-size", COMPARED, batch_sizes, effort, model=model, ghost=GHOST_BATCH_SIZE)


def _whole_batches(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> Comparison:
    """The runs of figures 3 and 4; those without normalization are those of figures 1 and 2 too."""
    model = wide_resnet_text(16, width)
    return over_batch_sizes(context, "whole-batch", COMPARED, batch_sizes, effort, model=model, ghost=None)


def _figure_1(found: Comparison) -> list[Check]:
    return [
        *found.above("(a) Batch norm is above no norm", "batch_norm", "without_batch_norm"),
        *found.above("(a) ZeroInit is above no norm", "zeroinit", "without_batch_norm"),
        *(found.falls(method, found.sizes[0], found.sizes[-1]) for method in COMPARED),
        larger(
            "(a) From the smallest batch size to the largest ZeroInit loses more accuracy than batch norm.",
            found.decline("zeroinit"),
            found.decline("batch_norm"),
        ),
        *found.above("(b) ZeroInit's loss is above batch norm's", "zeroinit", "batch_norm", metric=LOSS),
        *found.above("(b) No norm's loss is above batch norm's", "without_batch_norm", "batch_norm", metric=LOSS),
        larger(
            "(b) From the smallest batch size to the largest the loss rises more without normalization than with "
            "ZeroInit.",
            found.decline("zeroinit", metric=LOSS),
            found.decline("without_batch_norm", metric=LOSS),
        ),
        *map(
            found.as_printed,
            (
                *found.agree("batch_norm", "zeroinit", found.up_to(LARGE_BATCH)),
                _critical(found),
                *(_same_loss(found, size) for size in found.up_to(SMALL_BATCH)),
            ),
        ),
    ]


@artefact("zeroinit/figure-1", basis="training", checks=_figure_1)
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss against the batch size."""
    found = _ghost_batches(context, batch_sizes, width, effort)
    return found.evidence("Optima over batch sizes", remarks=(_LOSSES, _SIZES))


def _critical(found: Comparison) -> Check:
    """How much larger the batches are that batch norm can use."""
    sizes = {}
    for method in ("batch_norm", "zeroinit"):
        means = {size: found.reached(method, size).mean for size in found.sizes}
        near = [size for size, mean in means.items() if mean >= max(means.values()) - 0.5]
        sizes[method] = math.nan if any(map(math.isnan, means.values())) else float(max(near))
    ratio = sizes["batch_norm"] / sizes["zeroinit"]
    # Two methods that are as good at the largest batch as anywhere have larger critical sizes.
    unknown = math.isnan(ratio) or sizes["zeroinit"] == found.sizes[-1]
    return check(
        "(a) The largest batch size within 0.5 points of the best is at least 4 times larger with batch norm than "
        "with ZeroInit (about ten times in the paper).",
        None if unknown else ratio >= 4,
        ratio=ratio,
        **sizes,
    )


def _same_loss(found: Comparison, size: int) -> Check:
    return within(
        f"(b) The losses of ZeroInit and without normalization differ by less than 0.05 {found.at(size)}.",
        difference(found.reached("zeroinit", size, LOSS), found.reached("without_batch_norm", size, LOSS)),
        -0.05,
        0.05,
    )


def _figure_2(found: Comparison) -> list[Check]:
    small, largest = found.up_to(LARGE_BATCH), {method: _saturation(found, method) for method in COMPARED}
    return [
        *(found.proportional(method, small, metric) for metric in (ACCURACY, LOSS) for method in COMPARED),
        *found.similar_rates(COMPARED, found.up_to(SMALL_BATCH), 4),
        *(_ordered(largest, *pair) for pair in (("zeroinit", "without_batch_norm"), ("batch_norm", "zeroinit"))),
        *(found.as_printed(_saturates(method, largest[method])) for method in COMPARED),
    ]


@artefact("zeroinit/figure-2", basis="training", checks=_figure_2)
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, then saturated."""
    found = _ghost_batches(context, batch_sizes, width, effort)
    methods = ("without_batch_norm", "zeroinit", "batch_norm")
    text = ", ".join(f"{method} {_saturation(found, method):g}" for method in methods)
    printed = pd.DataFrame([{"quantity": "saturation_of_the_test_optimal_lr_log2", "value": text}])
    table = pd.concat([printed, found.table().assign(quantity="optimum")], ignore_index=True)
    remarks = (_LOSSES, _SIZES)
    return found.evidence("Optimal rate", rates=True, measured=table, on=("quantity",), remarks=remarks)


def _saturation(found: Comparison, method: str) -> float:
    """log₂ of the largest optimal rate over all batch sizes; NaN where an optimum is missing, or at an end."""
    exponents = [found.exponent(method, size) for size in found.sizes]
    return math.nan if any(map(math.isnan, exponents)) else max(exponents)


def _ordered(largest: Mapping[str, float], higher: str, lower: str) -> Check:
    """Which method's rates saturate higher; undecided where they do at the same rate of the grid."""
    gap = largest[higher] - largest[lower]
    return check(
        f"The largest optimal learning rate of {higher} is above that of {lower}.",
        None if math.isnan(gap) or gap == 0 else gap > 0,
        **{name: 2 ** largest[name] for name in (higher, lower)},
    )


def _saturates(method: str, exponent: float) -> Check:
    printed = published_as("zeroinit/figure-2").rows[0]["value"][method]
    return check(
        f"The optimal learning rate of {method} saturates at 2^{printed}, to a factor 2.",
        None if math.isnan(exponent) else abs(exponent - printed) <= 1,
        exponent=exponent,
    )


def _range(found: Comparison) -> list[Check]:
    first, last = found.sizes[:1], found.sizes[-1:]
    normalized = ("batch_norm", "zeroinit")
    return [
        *found.similar_rates(normalized, first, 2),
        found.larger_rate(*normalized, last[0], 4),
        *found.above("Batch norm's gain in accuracy shows even", "batch_norm", "without_batch_norm", first),
        *found.above("Batch norm is above ZeroInit", *normalized, last),
        *map(found.as_printed, found.agree(*normalized, first)),
    ]


@artefact("zeroinit/batch-size-range", basis="training", checks=_range)
def one_batch_size_is_not_enough(
    context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort
) -> Evidence:
    """One batch size does not show what another does: batch norm's larger rates show at large ones alone."""
    found = _ghost_batches(context, batch_sizes, width, effort)
    return found.evidence("What a batch size shows", remarks=(_LOSSES, _SIZES))


def _figure_3(found: Comparison) -> list[Check]:
    smallest = found.sizes[:1]
    large = [size for size in found.sizes if size > LARGE_BATCH] or found.sizes[-1:]
    usual = [size for size in found.sizes if size >= SMALL_BATCH]
    return [
        *found.above("(a) ZeroInit is above batch norm", "zeroinit", "batch_norm", smallest),
        *found.above("(a) Batch norm is above ZeroInit", "batch_norm", "zeroinit", large),
        found.falls("batch_norm", SMALL_BATCH, smallest[0]),
        # The text does not speak of the losses where batch norm suffers from small batches.
        *found.above("(b) ZeroInit's loss is above batch norm's", "zeroinit", "batch_norm", usual, metric=LOSS),
        found.as_printed(_constant(found, found.up_to(LARGE_BATCH))),
    ]


@artefact("zeroinit/figure-3", basis="training", checks=_figure_3)
def optima_at_small_batches(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """(a) the optimal test accuracy and (b) the optimal training loss, down to batch size 1."""
    found = _whole_batches(context, batch_sizes, width, effort)
    return found.evidence("Optima with whole-batch statistics", remarks=(_LOSSES,))


def _constant(found: Comparison, sizes: Sequence[int]) -> Check:
    """ZeroInit's accuracy does not depend on small batch sizes.

    The means at all sizes lie within one standard deviation of their mean; it fails only where one lies further from
    it at 95 %, and is inconclusive between.
    """
    reached = [found.reached("zeroinit", size) for size in sizes]
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


def _figure_4(found: Comparison) -> list[Check]:
    small = found.up_to(SMALL_BATCH)
    return [
        one
        for metric in (ACCURACY, LOSS)
        for one in (
            *(found.proportional(method, small, metric) for method in COMPARED),
            *found.similar_rates(COMPARED, small, 4, metric),
        )
    ]


@artefact("zeroinit/figure-4", basis="training", checks=_figure_4)
def rates_at_small_batches(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: proportional to the batch size, and similar for all methods."""
    found = _whole_batches(context, batch_sizes, width, effort)
    return found.evidence("Optimal rate", rates=True, remarks=(_LOSSES,))
