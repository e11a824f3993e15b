"""SkipInit and its variants on CIFAR: over depths (appendix E), and over batch sizes (figures 4, 6, 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import inks_of, optimum_against
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.claims import Check, check, larger, not_asked
from normless_papers.evidence import with_quantities
from normless_papers.experiments.comparison import SMALL_BATCH, Comparison, compared
from normless_papers.experiments.de_smith import (
    ACCURACY,
    LOSS,
    figure_over_batch_sizes,
    over_batch_sizes,
    table_over_depths,
    wide_resnet_text,
)
from normless_papers.experiments.effort import Effort, Training
from normless_papers.experiments.runs import Runs

COLUMN = "variant"
DEPTHS = (16, 100, 1000)
SMALL_ALPHA = ("skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")
VARIANTS = (
    "batch_norm",
    "skipinit_alpha_1",
    "skipinit_alpha_inv_sqrt_d",
    "divide_block_by_sqrt2",
    "skipinit_alpha_0",
    "skipinit_alpha_0_without_l2",
)
NORMS_ON_THE_STREAM = (
    "batch_norm_divide_block_by_sqrt2",
    "batch_norm_plus_batch_norm_at_end_of_block",
    "only_final_batch_norm",
)


def _trains(facts: Comparison, variant: str, depth: int) -> Check:
    """Check that a variant trains as batch norm does there; batch norm itself, as in the shallowest network."""
    against = facts.sizes[0] if variant == "batch_norm" else depth
    claim = f"{variant} can be trained {facts.at(depth)}."
    return _asked(facts, depth, facts.trains(claim, variant, depth, against=against))


def _does_not_train(facts: Comparison, variant: str, depth: int) -> Check:
    claim = f"{variant} cannot be trained {facts.at(depth)}, where batch norm can."
    return _asked(facts, depth, facts.does_not_train(claim, variant, depth))


def _asked(facts: Comparison, depth: int, outcome: Check) -> Check:
    """Return a check of the networks of a depth, as not asked if there are none."""
    return outcome if depth in facts.sizes else not_asked(outcome, f"networks of {depth} layers were not trained")


def _trainability(facts: Comparison) -> list[Check]:
    """Check that batch norm and α ≤ 1/√d train to depth 1000, α = 1 not from 100 on, division by √2 not at 1000."""
    trains = [
        _trains(facts, variant, depth)
        for variant in ("batch_norm", *SMALL_ALPHA)
        for depth in sorted({*facts.sizes, *DEPTHS})
        # The shallowest batch norm is the control of the others.
        if (variant, depth) != ("batch_norm", facts.sizes[0])
    ]
    fails = (("skipinit_alpha_1", 100), ("skipinit_alpha_1", 1000), ("divide_block_by_sqrt2", 1000))
    return [*trains, *(_does_not_train(facts, *pair) for pair in fails)]


def _losses(facts: Comparison) -> list[Check]:
    """Check that α ≤ 1/√d reaches batch norm's training loss to 0.001, and division by √2 is far worse (66 times)."""
    claim = "{} reaches a training loss within 0.001 of batch norm's"
    same = [
        facts.as_printed(check)
        for variant in SMALL_ALPHA
        for check in facts.above(claim.format(variant), "batch_norm", variant, (100, 1000), by=-0.001)
    ]
    divided, twice = facts.reached("divide_block_by_sqrt2", 100), facts.reached("batch_norm", 100).scaled(2.0)
    return [
        *same,
        larger("Divided by √2 the training loss at depth 100 is more than twice batch norm's.", divided, twice),
    ]


def _table_3(facts: Comparison) -> list[Check]:
    return [*_losses(facts), *_trainability(facts), _trains(facts, "skipinit_alpha_0_without_l2", 1000)]


def _table_4(facts: Comparison) -> list[Check]:
    """Check that batch-normalized networks without scaled-down branches do not train at depth 1000."""
    shallow, claim = (16, 100), "is less than 0.7 points below batch norm (0.6 as printed)"
    near = [
        facts.as_printed(check)
        for variant in NORMS_ON_THE_STREAM
        for check in facts.above(f"{variant} {claim}", variant, "batch_norm", shallow, by=-0.7)
    ]
    return [
        *(_does_not_train(facts, variant, 1000) for variant in NORMS_ON_THE_STREAM),
        *(_trains(facts, variant, depth) for variant in NORMS_ON_THE_STREAM for depth in shallow),
        *near,
    ]


def _table_5(facts: Comparison) -> list[Check]:
    better = "{} is better at depth {} than at depth {}."
    gains = [
        facts.exceeds(better.format(variant, deeper, shallower), (variant, deeper), (variant, shallower))
        for variant in ("batch_norm", *SMALL_ALPHA)
        for shallower, deeper in pairwise(DEPTHS)
    ]
    claim = "Divided by √2 the accuracy at depth 100 is more than 5 points below that at depth 16."
    collapse = facts.exceeds(claim, ("divide_block_by_sqrt2", 16), ("divide_block_by_sqrt2", 100), by=5.0)
    claim = "Without L2 regularization skipinit_alpha_0 loses more than 5 points"
    without_l2 = facts.above(claim, "skipinit_alpha_0", "skipinit_alpha_0_without_l2", DEPTHS, by=5.0)
    # The gains of depth and L2 regularization need trainings as long as the paper's.
    long = [facts.as_printed(check, of="shape") for check in gains]
    long += [facts.as_printed(check) for check in (collapse, *without_l2)]
    return [_trains(facts, "skipinit_alpha_1", 16), *_trainability(facts), *long]


def _table_6(facts: Comparison) -> list[Check]:
    return [*_losses(facts), _does_not_train(facts, "divide_block_by_sqrt2", 1000)]


_TITLES = {"test_accuracy": "Test accuracy of n-2 Wide-ResNets", "training_loss": "Training loss of n-2 Wide-ResNets"}

for _id, _checks, _metric in (
    ("skipinit/table-1", _trainability, "test_accuracy"),
    ("skipinit/table-3", _table_3, "training_loss"),
    ("skipinit/table-5", _table_5, "test_accuracy"),
    ("skipinit/table-6", _table_6, "training_loss"),
):
    table_over_depths(_id, _checks, VARIANTS, _TITLES[_metric], metric=_metric, column=COLUMN)

table_over_depths(
    "skipinit/table-4",
    _table_4,
    ("batch_norm", *NORMS_ON_THE_STREAM),
    "Batch norms that do not scale the branch down",
    column=COLUMN,
)


COMPARED = ("batch_norm", "skipinit", "regularized_skipinit")
GHOST = 32
BEST_BATCH = 16
GHOST_BATCHES, WHOLE_BATCHES = f"batch-size-{GHOST}", "batch-size-whole"


def _figure_4(facts: Comparison) -> list[Check]:
    # Batch norm at 64 is the control of batch norm at other sizes.
    controls = dict.fromkeys(COMPARED) | {"batch_norm": SMALL_BATCH}
    trains = [
        facts.trains(f"{method} trains {facts.at(size)}.", method, size, against=control)
        for method, control in controls.items()
        for size in facts.sizes
        if size != control
    ]
    return [*trains, *(facts.as_printed(_inside(facts, metric)) for metric in (ACCURACY, LOSS))]


def _figure_6(facts: Comparison) -> list[Check]:
    small = [size for size in facts.sizes if size < SMALL_BATCH]
    return [check for metric in (ACCURACY, LOSS) for check in facts.similar_rates(COMPARED, small, 2, metric)]


def _inside(facts: Comparison, metric: str) -> Check:
    """Check that every optimum lies inside the grid."""
    table = facts.runs.optima(metric)
    edges = int((table["edge"] != "").sum())
    claim = f"No optimum by {metric.replace('_', ' ')} lies at an end of the learning rates tried."
    return check(claim, None if math.isinf(facts.step) else not edges, at_an_end=edges, optima=len(table))


def _figure_7(facts: Comparison) -> list[Check]:
    small, largest = facts.up_to(SMALL_BATCH), facts.sizes[-1]
    claim = "Without batch norm and SkipInit the network is less accurate than with SkipInit"
    unreliable = [
        larger(
            f"{claim} {facts.at(size)}.",
            *(facts.runs.accuracy(method=name, batch_size=size) for name in ("skipinit", "without_batch_norm")),
        )
        for size in facts.sizes
    ]
    return [
        *(check for name in COMPARED[1:] for check in facts.above(f"Batch norm is above {name}", "batch_norm", name)),
        *(facts.proportional(method, small) for method in COMPARED),
        *facts.similar_rates(COMPARED, small, 4),
        *(facts.larger_rate("batch_norm", method, largest) for method in COMPARED[1:]),
        *unreliable,
    ]


def _figure_8(facts: Comparison) -> list[Check]:
    moderate = [size for size in facts.sizes if SMALL_BATCH <= size <= 4 * SMALL_BATCH]
    regularized = ("regularized_skipinit", "batch_norm")
    claim = "Regularized SkipInit is less than 1 point below batch norm"
    competitive = facts.above(claim, *regularized, moderate, by=-1)
    return [
        *(facts.falls("batch_norm", BEST_BATCH, size) for size in (facts.sizes[0], facts.sizes[-1])),
        *facts.above("Regularized SkipInit is above batch norm", *regularized, facts.sizes[:1]),
        facts.as_printed(_peak(facts)),
        *map(facts.as_printed, competitive),
    ]


def _ghost_batch_size(facts: tuple[Comparison, Comparison]) -> list[Check]:
    """Check batch norm over batch sizes, with statistics of the whole batch and of ghost batches."""
    whole, ghost = facts
    largest = whole.sizes[-1]
    return [
        larger(
            f"At batch size {largest} ghost batches of {GHOST} are better than statistics over the whole batch.",
            replace(ghost.reached("batch_norm", largest), name="ghost batches"),
            replace(whole.reached("batch_norm", largest), name="whole batch"),
        ),
        larger(
            f"From batch size {BEST_BATCH} to {largest} batch norm loses more with statistics over the whole batch "
            f"than over ghost batches of {GHOST}.",
            replace(whole.decline("batch_norm", BEST_BATCH), name="whole batch"),
            replace(ghost.decline("batch_norm", BEST_BATCH), name="ghost batches"),
        ),
        whole.as_printed(_peak(whole)),
    ]


def _whole_and_ghost(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> dict[str, Training]:
    model = wide_resnet_text(depth, width)
    return {
        name: over_batch_sizes(
            context, name, COMPARED[:1], batch_sizes, effort, model=model, ghost=size, metrics=(ACCURACY,)
        )
        for name, size in ((WHOLE_BATCHES, None), (GHOST_BATCHES, GHOST))
    }


@artefact("skipinit/ghost-batch-size", basis="training", checks=_ghost_batch_size, trains=_whole_and_ghost)
def ghost_batch_size(
    context: Context,
    runs: Mapping[str, Runs],
    *,
    batch_sizes: Sequence[int],
    depth: Network[int],
    width: Network[int],
    effort: Effort,
) -> Evidence:
    whole, ghost = (compared(runs[name], effort) for name in (WHOLE_BATCHES, GHOST_BATCHES))
    named = {"whole batch": whole, f"ghost batches of {GHOST}": ghost}
    optima = [facts.runs.optima(ACCURACY).assign(statistics=name) for name, facts in named.items()]
    tables = [facts.table().assign(quantity="optimum", statistics=name) for name, facts in named.items()]
    quantity = "best_batch_size_when_statistics_use_full_minibatch"
    measured = with_quantities({quantity: _best_batch(whole)}, *tables)

    def draw() -> Axes:
        return optimum_against(
            pd.concat(optima, ignore_index=True),
            series="statistics",
            across="batch_size",
            inks=inks_of(dict.fromkeys(named, "batch_norm")),
            title="Batch norm and its statistics",
            y_label="test accuracy (%)",
        )

    evidence = whole.evidence("", measured=measured)
    return replace(evidence, facts=(whole, ghost), draw=draw)


def _best_batch(facts: Comparison) -> float:
    """Return the batch size at which batch norm's optimal test accuracy is highest; NaN if one is missing."""
    means = {size: facts.reached("batch_norm", size).mean for size in facts.sizes}
    return math.nan if any(map(math.isnan, means.values())) else float(max(means, key=means.__getitem__))


def _peak(facts: Comparison) -> Check:
    """Check that no batch size is better than 16; inconclusive if a better one is not significantly better."""
    best = _best_batch(facts)
    claim = f"Batch norm's test accuracy is highest at batch size {BEST_BATCH}."
    if math.isnan(best) or BEST_BATCH not in facts.sizes:
        return check(claim, None, best_batch_size=best)
    reached = facts.reached("batch_norm", int(best))
    better = larger(claim, reached, facts.reached("batch_norm", BEST_BATCH))
    holds = True if best == BEST_BATCH else False if better.verdict == "holds" else None
    return check(claim, holds, best_batch_size=best, at_best=reached.mean)


_CIFAR10: dict[str, Any] = {"name": "skipinit-batch-size"}
_CIFAR100: dict[str, Any] = {"metrics": (ACCURACY,)}

figure_over_batch_sizes("skipinit/figure-4", _figure_4, COMPARED, "Optima over batch sizes", **_CIFAR10)
figure_over_batch_sizes("skipinit/figure-6", _figure_6, COMPARED, "Optimal rate", rates=True, **_CIFAR10)
figure_over_batch_sizes(
    "skipinit/figure-7",
    _figure_7,
    (*COMPARED, "without_batch_norm"),
    "Optima with ghost batches of 32",
    name=GHOST_BATCHES,
    ghost=GHOST,
    **_CIFAR100,
)
figure_over_batch_sizes(
    "skipinit/figure-8",
    _figure_8,
    COMPARED,
    "Optima with whole-batch statistics",
    name=WHOLE_BATCHES,
    quantity=lambda facts: ("batch_norm_best_batch_size", _best_batch(facts)),
    **_CIFAR100,
)
