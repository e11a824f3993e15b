"""The update that makes an unnormalized network diverge: its loss (figure 5) and its moments (figure 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.divergence import LOSS_LIMIT
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import decades_over_draws, in_every, over_draws, quantity_table
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.networks import Initializations
from normless.papers.understanding_bn.protocol import OPTIMIZER
from normless.papers.verdict import Check, Estimate, check
from normless.probes.updates.divergence import DivergingUpdate, find_divergence
from normless.probes.updates.landscape import loss_along, moments_along
from normless.report.axes import new_panels, title_axes
from normless.report.probes.channel_moments import moments_along_update
from normless.report.probes.loss_landscape import loss_along_direction

RATE = 0.002
# Without norm some twentieth of the way is where a step of a tenth of the largest stable rate ends.
_NEAR, _HALF = 0.05, 0.5
_FIRST_FEW = 10
# Ten layers each: both ends of the network and its middle.
_PARTS = MappingProxyType({"lower": (2, 11), "middle": (51, 60), "upper": (100, 109)})


def _budget(settings: Mapping[str, Any], *, minibatches: int, points: int) -> dict[str, Any]:
    return {**settings, "minibatches": minibatches, "points": points}


@artefact("understanding-bn/figure-5", basis="measurement")
def loss_along_update(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int, points: int
) -> Evidence:
    """Figure 5: along the diverging update the loss explodes towards the end, which the gradient does not tell."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    path = sorted({*np.linspace(0, 1, points).tolist(), _NEAR, _HALF})
    updates = _diverging(setting)
    losses = [
        loss_along(update.model, update.inputs, update.targets, update.direction, path).set_index("point")
        for update in updates
    ]
    checks = [_diverges(setting, updates), _soon(updates)]
    if losses:
        checks += _loss_checks(losses)
    quantities: dict[str, Estimate | float] = {
        "divergence_threshold": LOSS_LIMIT,
        "lr": RATE,
        "share of draws that diverge": len(updates) / draws,
    }
    if updates:
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
        tuple(checks),
        setting.setup(rate=RATE, optimizer=OPTIMIZER, minibatches=minibatches),
        on=("quantity",),
        draw=(lambda: loss_along_direction(losses[0].reset_index())) if losses else None,
        remarks=("The loss is that of the minibatch that made the update; the figure shows the first draw.",),
    )


@artefact("understanding-bn/figure-6", basis="measurement")
def moments_along_path(
    context: Context, *, data: str, batch_size: int, draws: int, minibatches: int, points: int
) -> Evidence:
    """Figure 6: moments of higher layers explode in the last part of the path, lower layers stay nearly constant."""
    setting = Initializations(context, data, batch_size, draws, minibatches)
    path = sorted({*np.linspace(0, 1, points).tolist(), _HALF})
    updates = _diverging(setting)
    tables = [
        moments_along(update.model, update.inputs, update.targets, update.direction, path) for update in updates
    ]
    checks = [_diverges(setting, updates)]
    if tables:
        checks += _moment_checks(tables)
        measured = pd.concat(_by_part(table).assign(draw=number) for number, table in enumerate(tables))
        measured = measured[["draw", "point", "layers", "abs_mean", "variance"]].reset_index(drop=True)
    else:
        measured = pd.DataFrame(columns=["draw", "point", "layers", "abs_mean", "variance"])
    return Evidence(
        measured,
        tuple(checks),
        setting.setup(rate=RATE, optimizer=OPTIMIZER, minibatches=minibatches),
        draw=(lambda: _moments(tables[0])) if tables else None,
        remarks=(
            "Measured are medians over the lower layers 2 to 11, the middle ones 51 to 60 and the upper ones 100 to "
            "109; the figure shows the first draw.",
        ),
    )


def _diverging(setting: Initializations) -> list[DivergingUpdate]:
    """The responsible update of every draw that diverges after its first."""
    found = (find_divergence(draw.model, draw.batches, RATE) for draw in setting.each(batch_norm=(False,)))
    return [descent.update for descent in found if descent.update is not None]


def _diverges(setting: Initializations, updates: Sequence[DivergingUpdate]) -> Check:
    flags = [True] * len(updates) + [False] * (setting.draws - len(updates))
    return in_every(
        f"At the rate {RATE:g} the unnormalized network diverges, its loss above {LOSS_LIMIT:g}, within "
        f"{setting.minibatches} minibatches, in every draw.",
        flags,
    )


def _soon(updates: Sequence[DivergingUpdate]) -> Check:
    claim = f"Divergence comes within the first few minibatches, at most {_FIRST_FEW}, in every draw."
    if not updates:
        return check(claim, None)
    return in_every(
        claim, [update.step <= _FIRST_FEW for update in updates], latest=max(update.step for update in updates)
    )


def _loss_checks(losses: Sequence[pd.DataFrame]) -> list[Check]:
    return [
        in_every(
            f"The loss is unremarkable near the origin: after {_NEAR:.0%} of the update at most twice that before "
            "it, in every draw.",
            [bool(table["loss"][_NEAR] <= 2 * table["loss"][0.0]) for table in losses],
            largest_ratio=max(table["loss"][_NEAR] / table["loss"][0.0] for table in losses),
        ),
        in_every(
            "It explodes towards the end: behind the update it is at least ten times that half way (or not finite), "
            "in every draw.",
            [not table["loss"][1.0] < 10 * table["loss"][_HALF] for table in losses],
            smallest_ratio=min(table["loss"][1.0] / table["loss"][_HALF] for table in losses),
        ),
        in_every(
            "The gradient does not indicate it: the loss behind the update is more than ten times what the gradient "
            "at the origin says, in every draw.",
            [not table["loss"][1.0] <= 10 * max(table["predicted_loss"][1.0], 0.0) for table in losses],
            largest_prediction=max(table["predicted_loss"][1.0] for table in losses),
        ),
    ]


def _by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Medians of the moments over the lowest, the middle and the highest layers, at every point."""
    parts = []
    for name, (first, last) in _PARTS.items():
        rows = table[table["order"].between(first, last)]
        parts.append(rows.groupby("point")[["abs_mean", "variance"]].median().reset_index().assign(layers=name))
    return pd.concat(parts, ignore_index=True)


def _moment_checks(tables: Sequence[pd.DataFrame]) -> list[Check]:
    checks: list[Check] = []
    for moment, name in (("abs_mean", "|mean|"), ("variance", "variance")):
        parts = [_by_part(table).pivot(index="point", columns="layers", values=moment) for table in tables]
        # Not finite at the end of the path means that it exploded there.
        upper = [_decades(part["upper"], 0.0, 1.0) for part in parts]
        lower = [_decades(part["lower"], 0.0, 1.0) for part in parts]
        early = [_decades(part["upper"], 0.0, _HALF) for part in parts]
        late = [_decades(part["upper"], _HALF, 1.0) for part in parts]
        checks += [
            in_every(
                f"The {name} of the upper layers grows by more than a decade, in every draw.",
                [grown > 1 for grown in upper],
                smallest_decades=min(upper),
            ),
            in_every(
                f"The {name} of the lower layers stays nearly constant: less than a decade of growth, in every draw.",
                [grown < 1 for grown in lower],
                largest_decades=max(lower),
            ),
            in_every(
                f"The {name} of the upper layers grows by more decades in the second half of the path than in the "
                "first, in every draw.",
                [second > first for first, second in zip(early, late, strict=True)],
                largest_early_decades=max(early),
                smallest_late_decades=min(late),
            ),
        ]
    return checks


def _decades(moments: pd.Series, start: float, end: float) -> float:
    """log₁₀ of what a moment grows by between two points of the path; infinite where it overflows at the end."""
    first, last = float(moments[start]), float(moments[end])
    return math.log10(last / first) if math.isfinite(last) else math.inf


def _moments(table: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    moments_along_update(table, panels[0], moment="abs_mean")
    moments_along_update(table, panels[1], moment="variance")
    for axes, title in zip(panels, ("Channel means along the update", "Channel variances"), strict=True):
        title_axes(axes, title)
    return panels[0]
