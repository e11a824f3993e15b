"""Sweeps over the depth of a Wide-ResNet, what the SkipInit paper claims of them, and their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.axes import Axes

from normless.papers.artefact import Context
from normless.papers.evidence import Evidence
from normless.papers.protocol import METHODS, Effort, depth_sweep
from normless.papers.selected import Runs, Selection, carried_out
from normless.papers.verdict import Check, larger
from normless.report.axes import new_panels
from normless.report.sweeps import inks_of, optimum_against, rate_against

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

    def trainability(self) -> list[Check]:
        """Batch norm and α ≤ 1/√d train at every depth to 1000; α = 1 not from 100 on, division by √2 not at 1000."""
        depths = sorted({*self.depths, 1000})
        trains = [
            self.optima.trains(
                f"{variant} can be trained at depth {depth}.",
                against={self.column: "batch_norm", "depth": depth if variant != "batch_norm" else self.depths[0]},
                depth=depth,
                **{self.column: variant},
            )
            for variant in ("batch_norm", *SMALL_ALPHA)
            for depth in depths
        ]
        fails = [
            self.optima.does_not_train(
                f"{variant} cannot be trained at depth {depth}, where batch norm can.",
                against={self.column: "batch_norm", "depth": depth},
                depth=depth,
                **{self.column: variant},
            )
            for variant, depth in (
                ("skipinit_alpha_1", 100),
                ("skipinit_alpha_1", 1000),
                ("divide_block_by_sqrt2", 1000),
            )
        ]
        return [*trains, *fails]

    def same_loss(self, tolerance: float) -> list[Check]:
        """SkipInit with α ≤ 1/√d reaches batch norm's training loss at depths 100 and 1000, to a tolerance."""
        return [
            larger(
                f"{variant} reaches a training loss within {tolerance:g} of batch norm's at depth {depth}.",
                self.optima.estimate(depth=depth, **{self.column: "batch_norm"}),
                self.optima.estimate(depth=depth, **{self.column: variant}),
                by=-tolerance,
            )
            for variant in SMALL_ALPHA
            for depth in (100, 1000)
        ]

    def worse_loss(self, by: float) -> Check:
        """Division by √2 is far worse than batch norm at depth 100."""
        return larger(
            f"Divided by √2 the training loss at depth 100 is more than {by:g} above batch norm's.",
            self.optima.estimate(depth=100, **{self.column: "divide_block_by_sqrt2"}),
            self.optima.estimate(depth=100, **{self.column: "batch_norm"}),
            by=by,
        )


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


def depth_evidence(
    found: DepthRuns, checks: Sequence[Check] = (), *, title: str, remarks: Sequence[str] = ()
) -> Evidence:
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
        checks=tuple(checks),
    )
