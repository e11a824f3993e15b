"""ZeroInit from shallow to very deep, without L2 regularization, and its multiplier alone (tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, larger
from normless_papers.comparison import Comparison
from normless_papers.de_smith import over_depths
from normless_papers.effort import Effort

DEPTHS = (16, 100, 1000)
METHODS = ("batch_norm", "zeroinit")
PARTS = ("zeroinit_without_l2", "scalar_multiplier")


def _trains(found: Comparison, method: str, depth: int, against: int | None = None) -> Check:
    return found.trains(f"{method} can be trained {found.at(depth)}.", method, depth, against=against)


def _table_2(found: Comparison) -> list[Check]:
    deep = DEPTHS[1:]
    high = [
        larger(f"{method} exceeds 94 % {found.at(depth)}.", found.reached(method, depth), Estimate(94.0))
        for method in METHODS
        for depth in deep
    ]
    near = found.above("ZeroInit is less than 1 point below batch norm", "zeroinit", "batch_norm", DEPTHS, by=-1.0)
    return [
        *(_trains(found, "batch_norm", depth, found.sizes[0]) for depth in deep),
        *(_trains(found, "zeroinit", depth) for depth in DEPTHS),
        *found.above("Batch norm is above ZeroInit", "batch_norm", "zeroinit", DEPTHS),
        *map(found.weakly_dependent, METHODS),
        *map(found.as_printed, (*high, *near)),
    ]


@artefact("zeroinit/table-2", basis="training", checks=_table_2)
def deep(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """Batch norm and ZeroInit at depths up to 1000: both exceed 94 %, batch norm a little more."""
    return over_depths(context, METHODS, depths, width, effort).by_depth("Test accuracy of d-2 Wide-ResNets")


def _table_3(found: Comparison) -> list[Check]:
    costs = larger(
        "At depth 1000 ZeroInit loses more than 1 point without L2 regularization.",
        found.reached("zeroinit", 1000),
        found.reached("zeroinit_without_l2", 1000),
        by=1.0,
    )
    claim = "The multiplier alone comes within 0.5 points of ZeroInit"
    alone = found.above(claim, "scalar_multiplier", "zeroinit", DEPTHS, by=-0.5)
    return [
        *(_trains(found, method, depth) for method in PARTS for depth in DEPTHS),
        found.weakly_dependent("zeroinit_without_l2"),
        *map(found.as_printed, (costs, *alone)),
    ]


@artefact("zeroinit/table-3", basis="training", checks=_table_3)
def without_parts(context: Context, *, depths: Sequence[int], width: int, effort: Effort) -> Evidence:
    """ZeroInit without L2 regularization, and the multiplier alone: both train at any depth without rescaling."""
    remark = (
        "The printed accuracy of zeroinit_without_l2 at depth 16 is damaged in the text (910), and so no number to "
        "compare with. Batch norm and ZeroInit with L2 regularization, of table 2, are run for comparison."
    )
    found = over_depths(context, (*METHODS, *PARTS), depths, width, effort)
    return found.by_depth("Test accuracy of d-2 Wide-ResNets", (remark,))
