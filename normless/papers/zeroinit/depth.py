"""ZeroInit from shallow to very deep, without L2 regularization, and its multiplier alone (tables 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normless.papers.artefact import Context, artefact
from normless.papers.depth import SHALLOW_TO_DEEP, DepthRuns, depth_evidence, depth_runs
from normless.papers.evidence import Evidence
from normless.papers.protocol import Effort
from normless.papers.verdict import Check, Estimate, check, larger

COLUMN = "method"


@artefact("zeroinit/table-2", basis="training")
def deep(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Batch norm and ZeroInit at depths up to 1000: both exceed 94 %, batch norm a little ahead."""
    methods = ("batch_norm", "zeroinit")
    runs = depth_runs(context, methods, depths, width, effort, "test_accuracy", column=COLUMN)
    found = runs.optima
    high = [
        larger(f"{method} exceeds 94 % at depth {depth}.", found.estimate(method=method, depth=depth), Estimate(94.0))
        for method in methods
        for depth in (100, 1000)
    ]
    ahead = [
        larger(
            f"Batch norm is ahead of ZeroInit at depth {depth}.",
            found.estimate(method="batch_norm", depth=depth),
            found.estimate(method="zeroinit", depth=depth),
        )
        for depth in SHALLOW_TO_DEEP
    ]
    near = [
        larger(
            f"Batch norm is ahead by less than 1 point at depth {depth}.",
            found.estimate(method="zeroinit", depth=depth),
            found.estimate(method="batch_norm", depth=depth),
            by=-1.0,
        )
        for depth in SHALLOW_TO_DEEP
    ]
    checks = (
        *high,
        *ahead,
        *near,
        *(_weakly_dependent(runs, method) for method in methods),
    )
    return depth_evidence(runs, checks, title="Test accuracy of d-2 Wide-ResNets")


@artefact("zeroinit/table-3", basis="training")
def without_parts(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """ZeroInit without L2 regularization, and the multiplier alone: both train at any depth without rescaling."""
    methods = ("zeroinit_without_l2", "scalar_multiplier", "zeroinit")
    runs = depth_runs(context, methods, depths, width, effort, "test_accuracy", column=COLUMN)
    found, shallowest = runs.optima, runs.depths[0]
    trains = [
        found.trains(
            f"{method} can be trained at depth {depth}.",
            against={"method": method, "depth": shallowest},
            method=method,
            depth=depth,
        )
        for method in methods[:2]
        for depth in SHALLOW_TO_DEEP
    ]
    costs = larger(
        "At depth 1000 ZeroInit loses more than 1 point without L2 regularization.",
        found.estimate(method="zeroinit", depth=1000),
        found.estimate(method="zeroinit_without_l2", depth=1000),
        by=1.0,
    )
    alone = [
        larger(
            f"The multiplier alone comes within 0.5 points of ZeroInit at depth {depth}.",
            found.estimate(method="scalar_multiplier", depth=depth),
            found.estimate(method="zeroinit", depth=depth),
            by=-0.5,
        )
        for depth in SHALLOW_TO_DEEP
    ]
    checks = (*trains, costs, *alone, _weakly_dependent(runs, "zeroinit_without_l2"))
    remark = (
        "The printed accuracy of zeroinit_without_l2 at depth 16 is damaged in the text (910), and so no number to "
        "compare with. ZeroInit with L2 regularization is run for comparison."
    )
    return depth_evidence(runs, checks, title="Test accuracy of d-2 Wide-ResNets", remarks=(remark,))


def _weakly_dependent(runs: DepthRuns, method: str) -> Check:
    """The optimal rate changes by at most a factor 2 from one depth to any other."""
    held = [runs.optima.exponent(method=method, depth=depth) for depth in runs.depths]
    known = [one for one in held if not math.isnan(one)]
    unknown = len(known) < 2 or len(runs.effort.exponents) < 2
    spread = max(known) - min(known) if known else math.nan
    return check(
        f"The optimal learning rate of {method} changes by at most a factor 2 between depths.",
        None if unknown else spread <= 1,
        factor=2**spread,
        depths=len(known),
    )
