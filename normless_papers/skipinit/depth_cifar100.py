"""Wide-ResNets from shallow to very deep on CIFAR-100 (appendix E, tables 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from normless_papers.artefact import Context, artefact
from normless_papers.depth import SHALLOW_TO_DEEP, VARIANTS, DepthRuns, depth_evidence, depth_runs
from normless_papers.evidence import Evidence
from normless_papers.protocol import Effort
from normless_papers.verdict import Check, larger

GAINING = ("batch_norm", "skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")


def _table_5(runs: DepthRuns) -> list[Check]:
    gains = [
        larger(
            f"{variant} is better at depth {deeper} than at depth {shallower}.",
            runs.reached(variant, deeper),
            runs.reached(variant, shallower),
        )
        for variant in GAINING
        for shallower, deeper in pairwise(SHALLOW_TO_DEEP)
    ]
    collapse = larger(
        "Divided by √2 the accuracy at depth 100 is more than 5 points below that at depth 16.",
        runs.reached("divide_block_by_sqrt2", 16),
        runs.reached("divide_block_by_sqrt2", 100),
        by=5.0,
    )
    without_l2 = [
        larger(
            f"Without L2 regularization skipinit_alpha_0 loses more than 5 points at depth {depth}.",
            runs.reached("skipinit_alpha_0", depth),
            runs.reached("skipinit_alpha_0_without_l2", depth),
            by=5.0,
        )
        for depth in SHALLOW_TO_DEEP
    ]
    # What depth and L2 regularization gain shows only in trainings as long as the paper's.
    lasting = [runs.as_printed(one) for one in (*gains, collapse, *without_l2)]
    return [runs.trains("skipinit_alpha_1", 16), *runs.trainability(), *lasting]


@artefact("skipinit/table-5", basis="training", checks=_table_5)
def accuracies(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracies: depth helps batch norm and SkipInit with α ≤ 1/√d, and L2 regularization helps."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "test_accuracy")
    return depth_evidence(runs, title="Test accuracy of n-2 Wide-ResNets")


def _table_6(runs: DepthRuns) -> list[Check]:
    return [*runs.same_loss(0.001), runs.worse_loss(), runs.does_not_train("divide_block_by_sqrt2", 1000)]


@artefact("skipinit/table-6", basis="training", checks=_table_6)
def losses(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal training losses of the same runs, without the L2 term as in table 3."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "training_loss")
    remark = "That losses are without the L2 term is printed for table 3 alone, and assumed here."
    return depth_evidence(runs, title="Training loss of n-2 Wide-ResNets", remarks=(remark,))
