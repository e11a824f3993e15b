"""Wide-ResNets from shallow to very deep: SkipInit and its variants, on CIFAR-10 and CIFAR-100 (appendix E)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, larger
from normless_papers.comparison import Comparison
from normless_papers.de_smith import ACCURACY, over_depths
from normless_papers.effort import Effort

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


def _trains(found: Comparison, variant: str, depth: int) -> Check:
    """Compared with batch norm there; batch norm itself with the shallowest network."""
    against = found.sizes[0] if variant == "batch_norm" else depth
    return found.trains(f"{variant} can be trained {found.at(depth)}.", variant, depth, against=against)


def _does_not_train(found: Comparison, variant: str, depth: int) -> Check:
    return found.does_not_train(
        f"{variant} cannot be trained {found.at(depth)}, where batch norm can.", variant, depth
    )


def _trainability(found: Comparison) -> list[Check]:
    """Batch norm and α ≤ 1/√d train at every depth to 1000; α = 1 not from 100 on, division by √2 not at 1000."""
    trains = [
        _trains(found, variant, depth)
        for variant in ("batch_norm", *SMALL_ALPHA)
        for depth in sorted({*found.sizes, *DEPTHS})
        # The shallowest batch norm is what the others are compared with.
        if (variant, depth) != ("batch_norm", found.sizes[0])
    ]
    fails = (("skipinit_alpha_1", 100), ("skipinit_alpha_1", 1000), ("divide_block_by_sqrt2", 1000))
    return [*trains, *(_does_not_train(found, *one) for one in fails)]


def _losses(found: Comparison) -> list[Check]:
    """SkipInit with α ≤ 1/√d reaches batch norm's training loss to 0.001, division by √2 is far worse (66 times)."""
    same = [
        found.as_printed(one)
        for variant in SMALL_ALPHA
        for one in found.above(
            f"{variant} reaches a training loss within 0.001 of batch norm's",
            "batch_norm",
            variant,
            (100, 1000),
            by=-0.001,
        )
    ]
    worse = larger(
        "Divided by √2 the training loss at depth 100 is more than twice batch norm's.",
        found.reached("divide_block_by_sqrt2", 100),
        found.reached("batch_norm", 100).scaled(2.0),
    )
    return [*same, worse]


@artefact("skipinit/table-1", basis="training", checks=_trainability)
def accuracies(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracies: batch norm and SkipInit with α ≤ 1/√d train at any depth, α = 1 and 1/√2 do not."""
    found = over_depths(context, VARIANTS, depths, width, effort, column=COLUMN)
    return found.by_depth("Test accuracy of n-2 Wide-ResNets")


def _table_3(found: Comparison) -> list[Check]:
    without_l2 = _trains(found, "skipinit_alpha_0_without_l2", 1000)
    return [*_losses(found), *_trainability(found), without_l2]


@artefact("skipinit/table-3", basis="training", checks=_table_3)
def losses(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal training losses without the L2 term, of the same runs."""
    found = over_depths(context, VARIANTS, depths, width, effort, "training_loss", column=COLUMN)
    return found.by_depth("Training loss of n-2 Wide-ResNets")


def _table_4(found: Comparison) -> list[Check]:
    shallow = (16, 100)
    near = [
        found.as_printed(one)
        for variant in NORMS_ON_THE_STREAM
        for one in found.above(
            f"{variant} is less than 0.7 points below batch norm (0.6 as printed)",
            variant,
            "batch_norm",
            shallow,
            by=-0.7,
        )
    ]
    return [
        *(_does_not_train(found, variant, 1000) for variant in NORMS_ON_THE_STREAM),
        *(_trains(found, variant, depth) for variant in NORMS_ON_THE_STREAM for depth in shallow),
        *near,
    ]


@artefact("skipinit/table-4", basis="training", checks=_table_4)
def norms_on_the_stream(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Three batch-normalized networks whose branches are not scaled down: none trains at depth 1000."""
    found = over_depths(context, ("batch_norm", *NORMS_ON_THE_STREAM), depths, width, effort, column=COLUMN)
    return found.by_depth("Batch norms that do not scale the branch down")


def _table_5(found: Comparison) -> list[Check]:
    gains = [
        larger(
            f"{variant} is better at depth {deeper} than at depth {shallower}.",
            found.reached(variant, deeper),
            found.reached(variant, shallower),
        )
        for variant in ("batch_norm", *SMALL_ALPHA)
        for shallower, deeper in pairwise(DEPTHS)
    ]
    collapse = larger(
        "Divided by √2 the accuracy at depth 100 is more than 5 points below that at depth 16.",
        found.reached("divide_block_by_sqrt2", 16),
        found.reached("divide_block_by_sqrt2", 100),
        by=5.0,
    )
    without_l2 = found.above(
        "Without L2 regularization skipinit_alpha_0 loses more than 5 points",
        "skipinit_alpha_0",
        "skipinit_alpha_0_without_l2",
        DEPTHS,
        by=5.0,
    )
    # What depth and L2 regularization gain shows only in trainings as long as the paper's.
    lasting = [found.as_printed(one) for one in (*gains, collapse, *without_l2)]
    return [_trains(found, "skipinit_alpha_1", 16), *_trainability(found), *lasting]


@artefact("skipinit/table-5", basis="training", checks=_table_5)
def accuracies_on_cifar100(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracies: depth helps batch norm and SkipInit with α ≤ 1/√d, and L2 regularization helps."""
    found = over_depths(context, VARIANTS, depths, width, effort, ACCURACY, column=COLUMN)
    return found.by_depth("Test accuracy of n-2 Wide-ResNets")


def _table_6(found: Comparison) -> list[Check]:
    return [*_losses(found), _does_not_train(found, "divide_block_by_sqrt2", 1000)]


@artefact("skipinit/table-6", basis="training", checks=_table_6)
def losses_on_cifar100(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal training losses of the same runs, without the L2 term as in table 3."""
    found = over_depths(context, VARIANTS, depths, width, effort, "training_loss", column=COLUMN)
    remark = "That losses are without the L2 term is printed for table 3 alone, and assumed here."
    return found.by_depth("Training loss of n-2 Wide-ResNets", (remark,))
