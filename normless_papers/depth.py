"""Sweeps over the depth of a Wide-ResNet, what the SkipInit paper claims of them, and their evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes

from normless.plots import inks_of, new_panels, optimum_against, rate_against
from normless_papers.artefact import Context
from normless_papers.evidence import Evidence
from normless_papers.optima import Runs, Selection, carried_out
from normless_papers.protocol import METHODS, Effort, depth_sweep
from normless_papers.verdict import Check, Estimate, at_scale, check, larger

COLUMN = "variant"
SHALLOW_TO_DEEP = (16, 100, 1000)
VARIANTS = (
    "batch_norm",
    "skipinit_alpha_1",
    "skipinit_alpha_inv_sqrt_d",
    "divide_block_by_sqrt2",
    "skipinit_alpha_0",
    "skipinit_alpha_0_without_l2",
)
SMALL_ALPHA = ("skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")


@dataclass(frozen=True)
class DepthRuns:
    """Runs of some methods at some depths, and their optima by one metric.

    Attributes:
        runs: all of them; axes `column` and `depth`.
        metric: what is optimized, test_accuracy or a training loss.
        effort: how much of the protocol was carried out.
        column: what the methods are called.
    """

    runs: Runs
    metric: str
    effort: Effort
    column: str

    @cached_property
    def optima(self) -> Selection:
        """The best rate of each method and depth."""
        return self.runs.selected(self.metric)

    @property
    def depths(self) -> list[int]:
        """All that were run, in increasing order."""
        return sorted(int(depth) for depth in self.optima.table["depth"].unique())

    def trains(self, method: str, depth: int) -> Check:
        """That a method trains at a depth, against batch norm there; batch norm itself against the shallowest."""
        against = self.depths[0] if method == "batch_norm" else depth
        return self.optima.trains(
            f"{method} can be trained at depth {depth}.",
            against={self.column: "batch_norm", "depth": against},
            depth=depth,
            **{self.column: method},
        )

    def does_not_train(self, method: str, depth: int) -> Check:
        """That a method does not train at a depth where batch norm does."""
        return self.optima.does_not_train(
            f"{method} cannot be trained at depth {depth}, where batch norm can.",
            against={self.column: "batch_norm", "depth": depth},
            depth=depth,
            **{self.column: method},
        )

    def trainability(self) -> list[Check]:
        """Batch norm and α ≤ 1/√d train at every depth to 1000; α = 1 not from 100 on, division by √2 not at 1000."""
        # Of batch norm at the shallowest depth nothing is asked: it is what the others are compared with.
        trains = [
            self.trains(variant, depth)
            for variant in ("batch_norm", *SMALL_ALPHA)
            for depth in sorted({*self.depths, *SHALLOW_TO_DEEP})
            if (variant, depth) != ("batch_norm", self.depths[0])
        ]
        fails = (("skipinit_alpha_1", 100), ("skipinit_alpha_1", 1000), ("divide_block_by_sqrt2", 1000))
        return [*trains, *(self.does_not_train(variant, depth) for variant, depth in fails)]

    def same_loss(self, tolerance: float) -> list[Check]:
        """SkipInit with α ≤ 1/√d reaches batch norm's training loss at depths 100 and 1000, to a tolerance."""
        return [
            self.as_printed(
                larger(
                    f"{variant} reaches a training loss within {tolerance:g} of batch norm's at depth {depth}.",
                    self.reached("batch_norm", depth),
                    self.reached(variant, depth),
                    by=-tolerance,
                )
            )
            for variant in SMALL_ALPHA
            for depth in (100, 1000)
        ]

    def worse_loss(self) -> Check:
        """Division by √2 is far worse than batch norm at depth 100: 66 times as printed on CIFAR-10."""
        return larger(
            "Divided by √2 the training loss at depth 100 is more than twice batch norm's.",
            self.reached("divide_block_by_sqrt2", 100),
            self.reached("batch_norm", 100).scaled(2.0),
        )

    def weakly_dependent(self, method: str) -> Check:
        """The optimal rate changes by at most a factor 2 from one depth to any other, or by a step of the grid."""
        exponents = [self.optima.exponent(depth=depth, **{self.column: method}) for depth in self.depths]
        factor = 2 ** (max(exponents) - min(exponents)) if not any(map(math.isnan, exponents)) else math.nan
        bound = max(2.0, self.effort.step)
        unknown = math.isnan(factor) or len(exponents) < 2 or math.isinf(bound)
        return check(
            f"The optimal learning rate of {method} changes by at most a factor {bound:g} between depths.",
            None if unknown else factor <= bound,
            factor=factor,
            depths=len(exponents),
        )

    def reached(self, method: str, depth: int) -> Estimate:
        """What is reached at the best rate."""
        return self.optima.estimate(depth=depth, **{self.column: method})

    def as_printed(self, one: Check) -> Check:
        """A check of printed numbers, or of what only the papers' length of training can show."""
        return at_scale(one, self.runs.reduction)


def depth_runs(
    context: Context,
    methods: Sequence[str],
    depths: Sequence[int],
    width: int,
    effort: Effort,
    metric: str,
    *,
    column: str = COLUMN,
) -> DepthRuns:
    """Carry out some methods at some depths (see `depth_sweep`), extending the rates for the optima by a metric."""
    sweep = depth_sweep(context, f"depth-{metric}", methods, depths, width=width, effort=effort, column=column)
    return DepthRuns(
        carried_out(
            context.lab,
            (sweep,),
            (metric,),
            whole=effort.whole and context.keeps(effort.data),
            control={column: "batch_norm"},
        ),
        metric,
        effort,
        column,
    )


def depth_evidence(found: DepthRuns, *, title: str, remarks: Sequence[str] = ()) -> Evidence:
    """The evidence of a table over depth: optima and their rates, and a figure of both against depth."""
    chosen = found.optima
    up = "test accuracy (%)" if chosen.unit == "percent" else "training loss (nats)"
    schemes = {name: str(METHODS[name]["scheme"]) for name in chosen.table[found.column].unique()}

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        style: dict[str, Any] = {"series": found.column, "across": "depth", "inks": inks_of(schemes)}
        optimum_against(chosen.table, upper, title=title, up=up, **style)
        return rate_against(chosen.table, lower, title="Optimal learning rate", **style)

    return Evidence(
        measured=chosen.published_columns(found.metric),
        facts=found,
        setup=found.runs.setup,
        on=(found.column, "depth"),
        draw=draw,
        remarks=(*remarks, *found.runs.remarks(chosen)),
        reduction=found.runs.reduction,
    )
