"""The update at which an unnormalized network diverges: the loss (figure 5) and moments (figure 6) along it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.divergence import LOSS_LIMIT
from normless.plots import Plot, lines, new_panels, shades
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import (
    Check,
    Estimate,
    at_scale,
    check,
    decades_over_draws,
    in_every,
    over_draws,
    quantity_table,
)
from normless_papers.probes import DivergingUpdate, find_divergence, loss_along, moments_along
from normless_papers.understanding_bn.initializations import Initializations
from normless_papers.understanding_bn.protocol import OPTIMIZER

RATE = 0.002
# A twentieth of the update is about a step at a tenth of the largest stable rate without norm.
_NEAR, _HALF = 0.05, 0.5
_FIRST_FEW = 10
# Ten layers each: both ends of the network and its middle.
_PARTS = MappingProxyType({"lower": (2, 11), "middle": (51, 60), "upper": (100, 109)})


@dataclass(frozen=True)
class Divergence:
    """Networks that were trained until they diverged, and measurements along their diverging updates.

    Attributes:
        draws: number of networks.
        minibatches: the maximum per network.
        steps: the number of the diverging update, from 1, for every draw that diverged.
        tables: for each of these, a row per point of the path of that update.
        reduction: as `Initializations.reduction`.
    """

    draws: int
    minibatches: int
    steps: tuple[int, ...]
    tables: tuple[pd.DataFrame, ...]
    reduction: str = ""

    def diverges(self) -> Check:
        """Whether every draw diverges, at the rate of the paper's set-up."""
        flags = [True] * len(self.steps) + [False] * (self.draws - len(self.steps))
        claim = (
            f"At the rate {RATE:g} the unnormalized network diverges, its loss above {LOSS_LIMIT:g}, within "
            f"{self.minibatches} minibatches, in every draw."
        )
        return at_scale(in_every(claim, flags), self.reduction)

    def every(self, claim: str, flags: Sequence[bool], **numbers: float) -> Check:
        """`in_every` of the draws that diverged; undecided if none did."""
        claim = f"{claim}, in every draw that diverges."
        return in_every(claim, flags, **numbers) if flags else check(claim, None)


def _figure_5(diverged: Divergence) -> list[Check]:
    losses = [table.set_index("point") for table in diverged.tables]
    soon = diverged.every(
        f"Divergence comes within the first few minibatches, at most {_FIRST_FEW}",
        [step <= _FIRST_FEW for step in diverged.steps],
        latest=max(diverged.steps, default=math.nan),
    )
    return [diverged.diverges(), soon, *_loss_checks(diverged, losses)]


@artefact("understanding-bn/figure-5", basis="measurement", checks=_figure_5)
def loss_along_update(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int, points: int
) -> Evidence:
    """Figure 5: along the diverging update the loss explodes towards the end, not predicted by the gradient."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    path = sorted({*np.linspace(0, 1, points).tolist(), _NEAR, _HALF})
    updates = _diverging(setting)
    tables = tuple(loss_along(one.model, one.inputs, one.targets, one.direction, path) for one in updates)
    quantities: dict[str, Estimate | float] = {
        "divergence_threshold": LOSS_LIMIT,
        "lr": RATE,
        "share of draws that diverge": len(updates) / draws,
    }
    if updates:
        losses = [table.set_index("point") for table in tables]
        quantities["update that diverges"] = over_draws([update.step for update in updates])
        for point in (0.0, _NEAR, _HALF, 1.0):
            quantities[f"log10 of the loss after {point:g} of the update"] = decades_over_draws(
                [table["loss"][point] for table in losses]
            )
        quantities["loss after the update, by the gradient"] = over_draws(
            [table["predicted_loss"][1.0] for table in losses]
        )
    return Evidence(
        quantity_table(quantities),
        facts=Divergence(draws, minibatches, tuple(update.step for update in updates), tables, setting.reduction),
        setup=setting.setup(rate=RATE, optimizer=OPTIMIZER, minibatches=minibatches),
        on=("quantity",),
        draw=(lambda: LOSSES(tables[0])) if tables else None,
        remarks=("The loss is that of the minibatch of the update; the figure shows the first draw.",),
        reduction=setting.reduction,
    )


def _figure_6(diverged: Divergence) -> list[Check]:
    return [diverged.diverges(), *_moment_checks(diverged)]


@artefact("understanding-bn/figure-6", basis="measurement", checks=_figure_6)
def moments_along_path(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int, points: int
) -> Evidence:
    """Figure 6: moments of higher layers explode in the last part of the path, lower layers stay nearly constant."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    path = sorted({*np.linspace(0, 1, points).tolist(), _HALF})
    updates = _diverging(setting)
    tables = tuple(moments_along(one.model, one.inputs, one.targets, one.direction, path) for one in updates)
    parts = tuple(_by_part(table) for table in tables)
    columns = ["draw", "point", "layers", "abs_mean", "variance"]
    measured = [table.assign(draw=number)[columns] for number, table in enumerate(parts)]
    return Evidence(
        pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=columns),
        facts=Divergence(draws, minibatches, tuple(update.step for update in updates), parts, setting.reduction),
        setup=setting.setup(rate=RATE, optimizer=OPTIMIZER, minibatches=minibatches),
        draw=(lambda: _moments(tables[0])) if tables else None,
        remarks=(
            "Measured are medians over the lower layers 2 to 11, the middle ones 51 to 60 and the upper ones 100 to "
            "109; the figure shows the first draw.",
        ),
        reduction=setting.reduction,
    )


def _diverging(setting: Initializations) -> list[DivergingUpdate]:
    """The diverging update of every draw that diverges after its first step."""
    descents = (find_divergence(draw.model, draw.batches, RATE) for draw in setting.each(batch_norm=(False,)))
    return [descent.update for descent in descents if descent.update is not None]


def _loss_checks(diverged: Divergence, losses: Sequence[pd.DataFrame]) -> list[Check]:
    return [
        diverged.every(
            f"The loss is unremarkable near the origin: after {_NEAR:.0%} of the update at most twice that before it",
            [bool(table["loss"][_NEAR] <= 2 * table["loss"][0.0]) for table in losses],
            largest_ratio=max((table["loss"][_NEAR] / table["loss"][0.0] for table in losses), default=math.nan),
        ),
        diverged.every(
            "It explodes towards the end: after the update it is at least ten times that half way (or not finite)",
            [not table["loss"][1.0] < 10 * table["loss"][_HALF] for table in losses],
            smallest_ratio=min((table["loss"][1.0] / table["loss"][_HALF] for table in losses), default=math.nan),
        ),
        diverged.every(
            "The gradient does not indicate it: the loss after the update is more than ten times what the gradient "
            "at the origin predicts",
            [not table["loss"][1.0] <= 10 * max(table["predicted_loss"][1.0], 0.0) for table in losses],
            largest_prediction=max((table["predicted_loss"][1.0] for table in losses), default=math.nan),
        ),
    ]


def _by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Medians of the moments over the lowest, the middle and the highest layers, at every point."""
    parts = []
    for name, (first, last) in _PARTS.items():
        rows = table[table["order"].between(first, last)]
        parts.append(rows.groupby("point")[["abs_mean", "variance"]].median().reset_index().assign(layers=name))
    return pd.concat(parts, ignore_index=True)


def _moment_checks(diverged: Divergence) -> list[Check]:
    checks: list[Check] = []
    for moment, name in (("abs_mean", "|mean|"), ("variance", "variance")):
        parts = [table.pivot(index="point", columns="layers", values=moment) for table in diverged.tables]
        # Not finite at the end of the path means that it exploded there.
        upper = [_decades(part["upper"], 0.0, 1.0) for part in parts]
        lower = [_decades(part["lower"], 0.0, 1.0) for part in parts]
        early = [_decades(part["upper"], 0.0, _HALF) for part in parts]
        late = [_decades(part["upper"], _HALF, 1.0) for part in parts]
        checks += [
            diverged.every(
                f"The {name} of the upper layers grows by more than a decade",
                [grown > 1 for grown in upper],
                smallest_decades=min(upper, default=math.nan),
            ),
            diverged.every(
                f"The {name} of the lower layers stays nearly constant: less than a decade of growth",
                [grown < 1 for grown in lower],
                largest_decades=max(lower, default=math.nan),
            ),
            diverged.every(
                f"The {name} of the upper layers grows by more decades in the second half of the path than in the "
                "first",
                [second > first for first, second in zip(early, late, strict=True)],
                largest_early_decades=max(early, default=math.nan),
                smallest_late_decades=min(late, default=math.nan),
            ),
        ]
    return checks


def _decades(moments: pd.Series, start: float, end: float) -> float:
    """log₁₀ of a moment's growth between two points of the path; infinite where it overflows at the end."""
    first, last = float(moments[start]), float(moments[end])
    return math.log10(last / first) if math.isfinite(last) else math.inf


def _moments(table: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    names = [f"{point:g}" for point in sorted(table["point"].unique())]
    sides = {"abs_mean": "Channel means along the update", "variance": "Channel variances"}
    for axes, (moment, title) in zip(panels, sides.items(), strict=True):
        lines(
            table.assign(part=table["point"].map("{:g}".format)),
            axes,
            x="order",
            y=moment,
            by="part",
            inks=shades(names),
            log="y",
            title=title,
            x_label="layer",
            y_label=f"mean of {_MOMENTS[moment]}, by part of the update",
        )
    return panels[0]


_MOMENTS = {"abs_mean": "|channel mean|", "variance": "channel variance"}


# The loss along a direction, and what the gradient at its start predicts.
LOSSES = Plot(
    "measured_on_predicted",
    x="point",
    measured="loss",
    joined=True,
    log="y?",
    title="Loss along the update",
    x_label="part of the update",
    y_label="loss (nats); dashed: by the gradient at the start",
)
