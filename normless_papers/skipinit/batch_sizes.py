"""SkipInit, its regularized form and batch norm over batch sizes (figures 4 and 6; appendix E, figures 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, optimum_against
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check, larger
from normless_papers.comparison import SMALL_BATCH, Comparison
from normless_papers.de_smith import ACCURACY, LOSS, over_batch_sizes, wide_resnet_text
from normless_papers.effort import Effort

COMPARED = ("batch_norm", "skipinit", "regularized_skipinit")
GHOST = 32
BEST_BATCH = 16
_REMARKS = (
    "The figure's batch sizes are only plotted; those of the paper's budget here are those of zeroinit/figure-3, "
    "whose runs with batch norm and with ZeroInit (Regularized SkipInit) are the same.",
    "Training losses include the L2 term, as those of zeroinit/figure-3.",
)
_REMARKS_CIFAR100 = (
    "The figures' batch sizes are only plotted; those of the paper's budget here are the powers of two to 2048.",
)


def _cifar10(context: Context, batch_sizes: Sequence[int], width: int, effort: Effort) -> Comparison:
    name, model = "skipinit-batch-size", wide_resnet_text(16, width)
    return over_batch_sizes(context, name, COMPARED, batch_sizes, effort, model=model, ghost=None)


def _figure_4(found: Comparison) -> list[Check]:
    # Batch norm at 64 is what batch norm at the other sizes is compared with.
    return [
        *(
            found.trains(
                f"{method} trains {found.at(size)}.",
                method,
                size,
                against=SMALL_BATCH if method == "batch_norm" else size,
            )
            for method in COMPARED
            for size in found.sizes
            if (method, size) != ("batch_norm", SMALL_BATCH)
        ),
        *(found.as_printed(_inside(found, metric)) for metric in (ACCURACY, LOSS)),
    ]


@artefact("skipinit/figure-4", basis="training", checks=_figure_4)
def optima(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracy and training loss as functions of the batch size; all methods train at every one."""
    return _cifar10(context, batch_sizes, width, effort).evidence("Optima over batch sizes", remarks=_REMARKS)


def _figure_6(found: Comparison) -> list[Check]:
    small = [size for size in found.sizes if size < SMALL_BATCH]
    return [one for metric in (ACCURACY, LOSS) for one in found.similar_rates(COMPARED, small, 2, metric)]


@artefact("skipinit/figure-6", basis="training", checks=_figure_6)
def rates(context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort) -> Evidence:
    """The learning rates of these optima: at small batch sizes those of the three methods are similar."""
    return _cifar10(context, batch_sizes, width, effort).evidence("Optimal rate", rates=True, remarks=_REMARKS)


def _inside(found: Comparison, metric: str) -> Check:
    """Optima are such only inside the grid."""
    table = found.runs.optima(metric)
    edges = int((table["edge"] != "").sum())
    return check(
        f"No optimum by {metric.replace('_', ' ')} lies at an end of the learning rates tried.",
        None if math.isinf(found.step) else not edges,
        at_an_end=edges,
        optima=len(table),
    )


def _cifar100(
    context: Context,
    methods: Sequence[str],
    batch_sizes: Sequence[int],
    depth: int,
    width: int,
    effort: Effort,
    ghost: int | None,
) -> Comparison:
    name, model = f"batch-size-{ghost or 'whole'}", wide_resnet_text(depth, width)
    return over_batch_sizes(
        context, name, methods, batch_sizes, effort, model=model, ghost=ghost, metrics=(ACCURACY,)
    )


def _figure_7(found: Comparison) -> list[Check]:
    small, largest = found.up_to(SMALL_BATCH), found.sizes[-1]
    unreliable = [
        larger(
            f"Without batch norm and SkipInit the network is less accurate than with SkipInit {found.at(size)}.",
            found.runs.accuracy(method="skipinit", batch_size=size),
            found.runs.accuracy(method="without_batch_norm", batch_size=size),
        )
        for size in found.sizes
    ]
    return [
        *(
            one
            for method in COMPARED[1:]
            for one in found.above(f"Batch norm is above {method}", "batch_norm", method)
        ),
        *(found.proportional(method, small) for method in COMPARED),
        *found.similar_rates(COMPARED, small, 4),
        *(found.larger_rate("batch_norm", method, largest) for method in COMPARED[1:]),
        *unreliable,
    ]


@artefact("skipinit/figure-7", basis="training", checks=_figure_7)
def ghost_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Batch norm over ghost batches of 32 is best; without it and without SkipInit training is unreliable."""
    found = _cifar100(context, (*COMPARED, "without_batch_norm"), batch_sizes, depth, width, effort, GHOST)
    return found.evidence("Optima with ghost batches of 32", remarks=_REMARKS_CIFAR100)


def _figure_8(found: Comparison) -> list[Check]:
    moderate = [size for size in found.sizes if SMALL_BATCH <= size <= 4 * SMALL_BATCH]
    regularized = ("regularized_skipinit", "batch_norm")
    competitive = found.above(
        "Regularized SkipInit is less than 1 point below batch norm", *regularized, moderate, by=-1
    )
    return [
        *(found.falls("batch_norm", BEST_BATCH, size) for size in (found.sizes[0], found.sizes[-1])),
        *found.above("Regularized SkipInit is above batch norm", *regularized, found.sizes[:1]),
        found.as_printed(_peak(found)),
        *map(found.as_printed, competitive),
    ]


@artefact("skipinit/figure-8", basis="training", checks=_figure_8)
def whole_batches(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """With statistics over the whole minibatch batch norm is best at 16."""
    found = _cifar100(context, COMPARED, batch_sizes, depth, width, effort, None)
    printed = pd.DataFrame([{"quantity": "batch_norm_best_batch_size", "value": _best_batch(found)}])
    table = pd.concat([printed, found.table().assign(quantity="optimum")], ignore_index=True)
    return found.evidence(
        "Optima with whole-batch statistics", measured=table, on=("quantity",), remarks=_REMARKS_CIFAR100
    )


@dataclass(frozen=True)
class Statistics:
    """Batch norm over batch sizes, with statistics over the whole batch and over ghost batches."""

    whole: Comparison
    ghost: Comparison


def _ghost_batch_size(facts: Statistics) -> list[Check]:
    largest = facts.whole.sizes[-1]
    return [
        larger(
            f"At batch size {largest} ghost batches of {GHOST} are better than statistics over the whole batch.",
            replace(facts.ghost.reached("batch_norm", largest), name="ghost batches"),
            replace(facts.whole.reached("batch_norm", largest), name="whole batch"),
        ),
        larger(
            f"From batch size {BEST_BATCH} to {largest} batch norm loses more with statistics over the whole batch "
            f"than over ghost batches of {GHOST}.",
            replace(facts.whole.decline("batch_norm", BEST_BATCH), name="whole batch"),
            replace(facts.ghost.decline("batch_norm", BEST_BATCH), name="ghost batches"),
        ),
        facts.whole.as_printed(_peak(facts.whole)),
    ]


@artefact("skipinit/ghost-batch-size", basis="training", checks=_ghost_batch_size)
def ghost_batch_size(
    context: Context, *, batch_sizes: Sequence[int], depth: int, width: int, effort: Effort
) -> Evidence:
    """Over whole batches batch norm is best at 16; over ghost batches of 32 large batches cost it less."""
    whole, ghost = (
        _cifar100(context, COMPARED[:1], batch_sizes, depth, width, effort, size) for size in (None, GHOST)
    )
    names = {"whole batch": whole, f"ghost batches of {GHOST}": ghost}
    optima = pd.concat(
        [found.runs.optima(ACCURACY).assign(statistics=name) for name, found in names.items()], ignore_index=True
    )
    tables = [found.table().assign(quantity="optimum", statistics=name) for name, found in names.items()]
    quantity = "best_batch_size_when_statistics_use_full_minibatch"
    printed = pd.DataFrame([{"quantity": quantity, "value": _best_batch(whole)}])

    def draw() -> Axes:
        return optimum_against(
            optima,
            series="statistics",
            across="batch_size",
            inks=inks_of(dict.fromkeys(names, "batch_norm")),
            title="Batch norm and its statistics",
            up="test accuracy (%)",
        )

    measured = pd.concat([printed, *tables], ignore_index=True)
    evidence = whole.evidence("", measured=measured, on=("quantity",), remarks=_REMARKS_CIFAR100)
    return replace(evidence, facts=Statistics(whole, ghost), draw=draw)


def _best_batch(found: Comparison) -> float:
    """The batch size at which batch norm's optimal test accuracy is highest; NaN where one is missing."""
    means = {size: found.reached("batch_norm", size).mean for size in found.sizes}
    return math.nan if any(map(math.isnan, means.values())) else float(max(means, key=means.__getitem__))


def _peak(found: Comparison) -> Check:
    """No batch size is better than 16; inconclusive where the difference to a better one is not significant."""
    best = _best_batch(found)
    claim = f"Batch norm's test accuracy is highest at batch size {BEST_BATCH}."
    if math.isnan(best) or BEST_BATCH not in found.sizes:
        return check(claim, None, best_batch_size=best)
    reached = found.reached("batch_norm", int(best))
    better = larger(claim, reached, found.reached("batch_norm", BEST_BATCH))
    holds = True if best == BEST_BATCH else False if better.verdict == "holds" else None
    return check(claim, holds, best_batch_size=best, at_best=reached.mean)
