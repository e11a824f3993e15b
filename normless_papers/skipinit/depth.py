"""Wide-ResNets from shallow to deep on CIFAR-10: SkipInit and its variants, norms that do not scale branches down."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.depth import VARIANTS, DepthRuns, depth_evidence, depth_runs
from normless_papers.evidence import Evidence
from normless_papers.protocol import Effort
from normless_papers.verdict import Check, larger

NORMS_ON_THE_STREAM = (
    "batch_norm_divide_block_by_sqrt2",
    "batch_norm_plus_batch_norm_at_end_of_block",
    "only_final_batch_norm",
)


def _table_1(runs: DepthRuns) -> list[Check]:
    return runs.trainability()


@artefact("skipinit/table-1", basis="training", checks=_table_1)
def accuracies(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal test accuracies: batch norm and SkipInit with α ≤ 1/√d train at any depth, α = 1 and 1/√2 do not."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "test_accuracy")
    return depth_evidence(runs, title="Test accuracy of n-2 Wide-ResNets")


def _table_3(runs: DepthRuns) -> list[Check]:
    without_l2 = runs.trains("skipinit_alpha_0_without_l2", 1000)
    return [*runs.same_loss(0.001), runs.worse_loss(), *runs.trainability(), without_l2]


@artefact("skipinit/table-3", basis="training", checks=_table_3)
def losses(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Optimal training losses without the L2 term, of the same runs."""
    runs = depth_runs(context, VARIANTS, depths, width, effort, "training_loss")
    return depth_evidence(runs, title="Training loss of n-2 Wide-ResNets")


def _table_4(runs: DepthRuns) -> list[Check]:
    near = [
        runs.as_printed(
            larger(
                f"{variant} is less than 0.7 points below batch norm at depth {depth} (0.6 as printed).",
                runs.reached(variant, depth),
                runs.reached("batch_norm", depth),
                by=-0.7,
            )
        )
        for variant in NORMS_ON_THE_STREAM
        for depth in (16, 100)
    ]
    return [
        *(runs.does_not_train(variant, 1000) for variant in NORMS_ON_THE_STREAM),
        *(runs.trains(variant, depth) for variant in NORMS_ON_THE_STREAM for depth in (16, 100)),
        *near,
    ]


@artefact("skipinit/table-4", basis="training", checks=_table_4)
def norms_on_the_stream(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Three batch-normalized networks whose branches are not scaled down: none trains at depth 1000."""
    runs = depth_runs(context, ("batch_norm", *NORMS_ON_THE_STREAM), depths, width, effort, "test_accuracy")
    return depth_evidence(runs, title="Batch norms that do not scale the branch down")
