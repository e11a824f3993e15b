"""ZeroInit, figures 1 to 4: methods over batch sizes, with ghost batches (section 3) and whole ones (section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from normless_papers.claims import Check, check, decided, difference, equivalent, larger, near, stated
from normless_papers.experiments.comparison import MARGIN, SMALL_BATCH, Comparison, ordered
from normless_papers.experiments.de_smith import ACCURACY, GHOST_BATCH_SIZE, LOSS, figure_over_batch_sizes
from normless_papers.published import published_as

COMPARED = ("batch_norm", "without_batch_norm", "zeroinit")
LARGE_BATCH = 256


def _figure_1(facts: Comparison) -> list[Check]:
    range_of_sizes = "From the smallest batch size to the largest"
    loses = f"(a) {range_of_sizes} ZeroInit loses more accuracy than batch norm."
    rises = f"(b) {range_of_sizes} the loss rises more without normalization than with ZeroInit."
    same = "(b) The losses of ZeroInit and without normalization differ by less than 0.05"
    unnormalized = ("zeroinit", "without_batch_norm")
    losses = {size: [facts.reached(name, size, LOSS) for name in unnormalized] for size in facts.up_to(SMALL_BATCH)}
    return [
        *facts.above("(a) Batch norm is above no norm", "batch_norm", "without_batch_norm"),
        *facts.above("(a) ZeroInit is above no norm", "zeroinit", "without_batch_norm"),
        *(facts.falls(method, facts.sizes[0], facts.sizes[-1]) for method in COMPARED),
        larger(loses, facts.decline("zeroinit"), facts.decline("batch_norm")),
        *facts.above("(b) ZeroInit's loss is above batch norm's", "zeroinit", "batch_norm", metric=LOSS),
        *facts.above("(b) No norm's loss is above batch norm's", "without_batch_norm", "batch_norm", metric=LOSS),
        larger(rises, *(facts.decline(method, metric=LOSS) for method in unnormalized)),
        *map(
            facts.as_printed,
            (
                *facts.agree("batch_norm", "zeroinit", facts.up_to(LARGE_BATCH)),
                _critical(facts),
                *(near(f"{same} {facts.at(size)}.", difference(*both), 0, 0.05) for size, both in losses.items()),
            ),
        ),
    ]


def _critical(facts: Comparison) -> Check:
    """Compare the largest batch sizes at which batch norm and ZeroInit are close to their best."""
    sizes = {}
    for method in ("batch_norm", "zeroinit"):
        means = {size: facts.reached(method, size).mean for size in facts.sizes}
        near = [size for size, mean in means.items() if mean >= max(means.values()) - 0.5]
        sizes[method] = math.nan if any(map(math.isnan, means.values())) else float(max(near))
    ratio = sizes["batch_norm"] / sizes["zeroinit"]
    # A method that is as good at the largest batch size as anywhere has a larger, unknown critical size.
    unknown = math.isnan(ratio) or sizes["zeroinit"] == facts.sizes[-1]
    claim = (
        "(a) The largest batch size within 0.5 points of the best is at least 4 times larger with batch norm than "
        "with ZeroInit (about ten times in the paper)."
    )
    return check(claim, None if unknown else ratio >= 4, ratio=ratio, **sizes)


def _figure_2(facts: Comparison) -> list[Check]:
    small = facts.up_to(LARGE_BATCH)
    largest = {method: _saturation(facts, method) for method in COMPARED}
    printed = published_as("zeroinit/figure-2").rows[0]["value"]
    tests = {
        f"The optimal learning rate of {method} saturates at 2^{printed[method]}, to a factor 2.": decided(
            None if math.isnan(exponent) else abs(exponent - printed[method]) <= 1, exponent=exponent
        )
        for method, exponent in largest.items()
    }
    return [
        *(facts.proportional(method, small, metric) for metric in (ACCURACY, LOSS) for method in COMPARED),
        *facts.similar_rates(COMPARED, facts.up_to(SMALL_BATCH), 4),
        *(
            _saturates_above(facts, largest, *pair)
            for pair in (("zeroinit", "without_batch_norm"), ("batch_norm", "zeroinit"))
        ),
        *map(facts.as_printed, stated(tests)),
    ]


def _saturation(facts: Comparison, method: str) -> float:
    """Return log₂ of the largest optimal rate over all batch sizes; NaN if an optimum is missing or at an end."""
    exponents = [facts.exponent(method, size) for size in facts.sizes]
    return math.nan if any(map(math.isnan, exponents)) else max(exponents)


def _saturations(facts: Comparison) -> tuple[str, str]:
    methods = ("without_batch_norm", "zeroinit", "batch_norm")
    text = ", ".join(f"{method} {_saturation(facts, method):g}" for method in methods)
    return "saturation_of_the_test_optimal_lr_log2", text


def _saturates_above(facts: Comparison, largest: Mapping[str, float], higher: str, lower: str) -> Check:
    """Check which method's rates saturate higher; undecided as in `ordered`."""
    ranges = {name: _range_at(facts, name, largest[name]) for name in (higher, lower)}
    holds = ordered(largest[higher], ranges[higher], largest[lower], ranges[lower])
    claim = f"The largest optimal learning rate of {higher} is above that of {lower}."
    return check(claim, holds, **{name: 2 ** largest[name] for name in ranges})


def _range_at(facts: Comparison, method: str, saturation: float) -> tuple[float, float]:
    """Return log₂ of the rates within a deviation of the largest optimum, over the batch sizes that have it."""
    ranges = [facts.rate_range(method, size) for size in facts.sizes if facts.exponent(method, size) == saturation]
    lows, highs = zip(*ranges or [(math.nan, math.nan)], strict=True)
    return max(lows), min(highs)


def _range(facts: Comparison) -> list[Check]:
    first, last = facts.sizes[:1], facts.sizes[-1:]
    normalized = ("batch_norm", "zeroinit")
    return [
        *facts.similar_rates(normalized, first, 2),
        facts.larger_rate(*normalized, last[0], 4),
        *facts.above("Batch norm already gains accuracy", "batch_norm", "without_batch_norm", first),
        *facts.above("Batch norm is above ZeroInit", *normalized, last),
        *map(facts.as_printed, facts.agree(*normalized, first)),
    ]


def _figure_3(facts: Comparison) -> list[Check]:
    smallest = facts.sizes[:1]
    large = [size for size in facts.sizes if size > LARGE_BATCH] or facts.sizes[-1:]
    usual = [size for size in facts.sizes if size >= SMALL_BATCH]
    return [
        *facts.above("(a) ZeroInit is above batch norm", "zeroinit", "batch_norm", smallest),
        *facts.above("(a) Batch norm is above ZeroInit", "batch_norm", "zeroinit", large),
        facts.falls("batch_norm", SMALL_BATCH, smallest[0]),
        # The text does not discuss the losses at batch sizes that are too small for batch norm.
        *facts.above("(b) ZeroInit's loss is above batch norm's", "zeroinit", "batch_norm", usual, metric=LOSS),
        facts.as_printed(_constant(facts, facts.up_to(LARGE_BATCH))),
    ]


def _constant(facts: Comparison, sizes: Sequence[int]) -> Check:
    """Check that ZeroInit's highest and lowest accuracy over small batch sizes are equivalent within `MARGIN`."""
    reached = [replace(facts.reached("zeroinit", size), name=facts.at(size)) for size in sizes]
    highest, lowest = (most(reached, key=lambda accuracy: accuracy.mean) for most in (max, min))
    claim = f"(a) ZeroInit's accuracies up to batch size {LARGE_BATCH} differ by less than {MARGIN:g} points."
    return equivalent(claim, highest, lowest, MARGIN)


def _figure_4(facts: Comparison) -> list[Check]:
    small = facts.up_to(SMALL_BATCH)
    return [
        check
        for metric in (ACCURACY, LOSS)
        for check in (
            *(facts.proportional(method, small, metric) for method in COMPARED),
            *facts.similar_rates(COMPARED, small, 4, metric),
        )
    ]


for _id, _checks, _ghost, _title in (
    ("zeroinit/figure-1", _figure_1, GHOST_BATCH_SIZE, "Optima over batch sizes"),
    ("zeroinit/figure-2", _figure_2, GHOST_BATCH_SIZE, "Optimal rate"),
    ("zeroinit/batch-size-range", _range, GHOST_BATCH_SIZE, "What a batch size shows"),
    ("zeroinit/figure-3", _figure_3, None, "Optima with whole-batch statistics"),
    ("zeroinit/figure-4", _figure_4, None, "Optimal rate"),
):
    figure_over_batch_sizes(
        _id,
        _checks,
        COMPARED,
        _title,
        # Runs without normalization have the same name with and without ghost batches.
        name="batch-size" if _ghost else "whole-batch",
        ghost=_ghost,
        quantity=_saturations if _checks is _figure_2 else None,
        rates=_title == "Optimal rate",
    )
