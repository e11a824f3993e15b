"""Wide-ResNets from shallow to very deep: SkipInit and its variants, on CIFAR-10 and CIFAR-100 (appendix E)."""

from __future__ import annotations

from itertools import pairwise

from normless_papers.claims import Check, larger
from normless_papers.comparison import Comparison
from normless_papers.de_smith import table_over_depths

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
    """Compared with batch norm there; batch norm itself with the shallowest network."""
    against = facts.sizes[0] if variant == "batch_norm" else depth
    return facts.trains(f"{variant} can be trained {facts.at(depth)}.", variant, depth, against=against)


def _does_not_train(facts: Comparison, variant: str, depth: int) -> Check:
    claim = f"{variant} cannot be trained {facts.at(depth)}, where batch norm can."
    return facts.does_not_train(claim, variant, depth)


def _trainability(facts: Comparison) -> list[Check]:
    """Batch norm and α ≤ 1/√d train at every depth to 1000; α = 1 not from 100 on, division by √2 not at 1000."""
    trains = [
        _trains(facts, variant, depth)
        for variant in ("batch_norm", *SMALL_ALPHA)
        for depth in sorted({*facts.sizes, *DEPTHS})
        # The others are compared with the shallowest batch norm.
        if (variant, depth) != ("batch_norm", facts.sizes[0])
    ]
    fails = (("skipinit_alpha_1", 100), ("skipinit_alpha_1", 1000), ("divide_block_by_sqrt2", 1000))
    return [*trains, *(_does_not_train(facts, *one) for one in fails)]


def _losses(facts: Comparison) -> list[Check]:
    """SkipInit with α ≤ 1/√d reaches batch norm's training loss to 0.001, division by √2 is far worse (66 times)."""
    same = [
        facts.as_printed(one)
        for variant in SMALL_ALPHA
        for one in facts.above(
            f"{variant} reaches a training loss within 0.001 of batch norm's",
            "batch_norm",
            variant,
            (100, 1000),
            by=-0.001,
        )
    ]
    worse = larger(
        "Divided by √2 the training loss at depth 100 is more than twice batch norm's.",
        facts.reached("divide_block_by_sqrt2", 100),
        facts.reached("batch_norm", 100).scaled(2.0),
    )
    return [*same, worse]


def _table_3(facts: Comparison) -> list[Check]:
    return [*_losses(facts), *_trainability(facts), _trains(facts, "skipinit_alpha_0_without_l2", 1000)]


def _table_4(facts: Comparison) -> list[Check]:
    """Batch-normalized networks whose branches are not scaled down: none trains at depth 1000."""
    shallow, claim = (16, 100), "is less than 0.7 points below batch norm (0.6 as printed)"
    near = [
        facts.as_printed(one)
        for variant in NORMS_ON_THE_STREAM
        for one in facts.above(f"{variant} {claim}", variant, "batch_norm", shallow, by=-0.7)
    ]
    return [
        *(_does_not_train(facts, variant, 1000) for variant in NORMS_ON_THE_STREAM),
        *(_trains(facts, variant, depth) for variant in NORMS_ON_THE_STREAM for depth in shallow),
        *near,
    ]


def _table_5(facts: Comparison) -> list[Check]:
    gains = [
        facts.exceeds(
            f"{variant} is better at depth {deeper} than at depth {shallower}.",
            (variant, deeper),
            (variant, shallower),
        )
        for variant in ("batch_norm", *SMALL_ALPHA)
        for shallower, deeper in pairwise(DEPTHS)
    ]
    collapse = facts.exceeds(
        "Divided by √2 the accuracy at depth 100 is more than 5 points below that at depth 16.",
        ("divide_block_by_sqrt2", 16),
        ("divide_block_by_sqrt2", 100),
        by=5.0,
    )
    without_l2 = facts.above(
        "Without L2 regularization skipinit_alpha_0 loses more than 5 points",
        "skipinit_alpha_0",
        "skipinit_alpha_0_without_l2",
        DEPTHS,
        by=5.0,
    )
    # Only trainings as long as the paper's show what depth and L2 regularization gain.
    long = [facts.as_printed(one) for one in (*gains, collapse, *without_l2)]
    return [_trains(facts, "skipinit_alpha_1", 16), *_trainability(facts), *long]


def _table_6(facts: Comparison) -> list[Check]:
    return [*_losses(facts), _does_not_train(facts, "divide_block_by_sqrt2", 1000)]


_TITLES = {"test_accuracy": "Test accuracy of n-2 Wide-ResNets", "training_loss": "Training loss of n-2 Wide-ResNets"}
_WITHOUT_L2 = "That losses are without the L2 term is printed for table 3 alone, and assumed here."

for _id, _checks, _metric, _remarks in (
    ("skipinit/table-1", _trainability, "test_accuracy", ()),
    ("skipinit/table-3", _table_3, "training_loss", ()),
    ("skipinit/table-5", _table_5, "test_accuracy", ()),
    ("skipinit/table-6", _table_6, "training_loss", (_WITHOUT_L2,)),
):
    table_over_depths(_id, _checks, VARIANTS, _TITLES[_metric], _remarks, metric=_metric, column=COLUMN)

table_over_depths(
    "skipinit/table-4",
    _table_4,
    ("batch_norm", *NORMS_ON_THE_STREAM),
    "Batch norms that do not scale the branch down",
    column=COLUMN,
)
