"""Wide-ResNets from shallow to very deep on CIFAR-100 (appendix E, tables 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from normless.papers.artefact import Context, artefact
from normless.papers.depth import COLUMN, SHALLOW_TO_DEEP, VARIANTS, depth_evidence, depth_runs
from normless.papers.evidence import Evidence
from normless.papers.protocol import Effort
from normless.papers.verdict import larger

GAINING = ("batch_norm", "skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")


@artefact("skipinit/table-5", basis="training")
def accuracies(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracies: depth helps batch norm and SkipInit with α ≤ 1/√d, and L2 regularization helps."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "test_accuracy")
    found = runs.optima
    gains = [
        larger(
            f"{variant} is better at depth {deeper} than at depth {shallower}.",
            found.estimate(variant=variant, depth=deeper),
            found.estimate(variant=variant, depth=shallower),
        )
        for variant in GAINING
        for shallower, deeper in pairwise(SHALLOW_TO_DEEP)
    ]
    collapse = larger(
        "Divided by √2 the accuracy at depth 100 is more than 5 points below that at depth 16.",
        found.estimate(variant="divide_block_by_sqrt2", depth=16),
        found.estimate(variant="divide_block_by_sqrt2", depth=100),
        by=5.0,
    )
    shallow = found.trains(
        "skipinit_alpha_1 can be trained at depth 16.",
        against={COLUMN: "batch_norm", "depth": 16},
        variant="skipinit_alpha_1",
        depth=16,
    )
    without_l2 = [
        larger(
            f"Without L2 regularization skipinit_alpha_0 loses more than 5 points at depth {depth}.",
            found.estimate(variant="skipinit_alpha_0", depth=depth),
            found.estimate(variant="skipinit_alpha_0_without_l2", depth=depth),
            by=5.0,
        )
        for depth in SHALLOW_TO_DEEP
    ]
    checks = (*gains, shallow, *runs.trainability(), collapse, *without_l2)
    return depth_evidence(runs, checks, title="Test accuracy of n-2 Wide-ResNets")


@artefact("skipinit/table-6", basis="training")
def losses(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal training losses of the same runs, without the L2 term as in table 3."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "training_loss")
    fails = runs.optima.does_not_train(
        "divide_block_by_sqrt2 cannot be trained at depth 1000, where batch norm can.",
        against={COLUMN: "batch_norm", "depth": 1000},
        variant="divide_block_by_sqrt2",
        depth=1000,
    )
    checks = (*runs.same_loss(0.001), runs.worse_loss(by=0.1), fails)
    remark = "That losses are without the L2 term is printed for table 3 alone, and assumed here."
    return depth_evidence(runs, checks, title="Training loss of n-2 Wide-ResNets", remarks=(remark,))
