"""ZeroInit from shallow to very deep, without L2 regularization, and its multiplier alone (tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.depth import SHALLOW_TO_DEEP, DepthRuns, depth_evidence, depth_runs
from normless_papers.evidence import Evidence
from normless_papers.protocol import Effort
from normless_papers.verdict import Check, Estimate, larger

COLUMN = "method"
METHODS = ("batch_norm", "zeroinit")
PARTS = ("zeroinit_without_l2", "scalar_multiplier")


def _table_2(runs: DepthRuns) -> list[Check]:
    deep = SHALLOW_TO_DEEP[1:]
    high = [
        larger(f"{method} exceeds 94 % at depth {depth}.", runs.reached(method, depth), Estimate(94.0))
        for method in METHODS
        for depth in deep
    ]
    ahead, near = (
        [
            larger(claim.format(depth=depth), runs.reached(first, depth), runs.reached(second, depth), by=by)
            for depth in SHALLOW_TO_DEEP
        ]
        for claim, first, second, by in (
            ("Batch norm is ahead of ZeroInit at depth {depth}.", "batch_norm", "zeroinit", 0.0),
            ("Batch norm is ahead by less than 1 point at depth {depth}.", "zeroinit", "batch_norm", -1.0),
        )
    )
    return [
        *(runs.trains("batch_norm", depth) for depth in deep),
        *(runs.trains("zeroinit", depth) for depth in SHALLOW_TO_DEEP),
        *ahead,
        *map(runs.weakly_dependent, METHODS),
        *map(runs.as_printed, (*high, *near)),
    ]


@artefact("zeroinit/table-2", basis="training", checks=_table_2)
def deep(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Batch norm and ZeroInit at depths up to 1000: both exceed 94 %, batch norm a little ahead."""
    runs = depth_runs(context, METHODS, depths, width, effort, "test_accuracy", column=COLUMN)
    return depth_evidence(runs, title="Test accuracy of d-2 Wide-ResNets")


def _table_3(runs: DepthRuns) -> list[Check]:
    costs = larger(
        "At depth 1000 ZeroInit loses more than 1 point without L2 regularization.",
        runs.reached("zeroinit", 1000),
        runs.reached("zeroinit_without_l2", 1000),
        by=1.0,
    )
    alone = [
        larger(
            f"The multiplier alone comes within 0.5 points of ZeroInit at depth {depth}.",
            runs.reached("scalar_multiplier", depth),
            runs.reached("zeroinit", depth),
            by=-0.5,
        )
        for depth in SHALLOW_TO_DEEP
    ]
    return [
        *(runs.trains(method, depth) for method in PARTS for depth in SHALLOW_TO_DEEP),
        runs.weakly_dependent("zeroinit_without_l2"),
        *map(runs.as_printed, (costs, *alone)),
    ]


@artefact("zeroinit/table-3", basis="training", checks=_table_3)
def without_parts(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """ZeroInit without L2 regularization, and the multiplier alone: both train at any depth without rescaling."""
    runs = depth_runs(context, (*METHODS, *PARTS), depths, width, effort, "test_accuracy", column=COLUMN)
    remark = (
        "The printed accuracy of zeroinit_without_l2 at depth 16 is damaged in the text (910), and so no number to "
        "compare with. Batch norm and ZeroInit with L2 regularization, of table 2, are run for comparison."
    )
    return depth_evidence(runs, title="Test accuracy of d-2 Wide-ResNets", remarks=(remark,))
