"""Bjorck et al., single updates: divergence (figures 5 and 6), the longest useful steps (figure 24, appendix J)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.probes import LOSS_LIMIT, descend
from normless_lab.plots import Plot, lines, new_panels, shades
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Seeds
from normless_papers.claims import (
    Claim,
    Estimate,
    at_scale,
    check,
    decades_over_draws,
    in_every,
    over_draws,
    quantity_table,
)
from normless_papers.probes.divergence import (
    find_divergence,
    loss_along,
    moments_along,
    momentum_sgd,
    steepest_descent,
)
from normless_papers.understanding_bn.initializations import OPTIMIZER, Draw, Initializations, MeasuredDraws, decades

RATE = 0.002
# A twentieth of the update is about a step at a tenth of the largest stable rate without a norm.
_NEAR, _HALF = 0.05, 0.5
_FIRST_FEW = 10
# "The moments explode in the higher layers, but stay relatively constant in lower levels" (figure 6).
_CONSTANT = 0.25
# Ten layers each from both ends and the middle of the network.
_PARTS = MappingProxyType({"lower": (2, 11), "middle": (51, 60), "upper": (100, 109)})


@dataclass(frozen=True)
class Divergence:
    """Networks that are trained until they diverge, on a limited number of minibatches.

    `steps` has the number, from 1, of each diverging update, 0 for a network whose loss is above the limit before the
    first, and `tables` a row per point of each update's path; both omit networks that did not diverge.
    """

    draws: int
    minibatches: int
    steps: tuple[int, ...]
    tables: tuple[pd.DataFrame, ...]
    reduction: str = ""

    def diverges(self) -> Claim:
        """Check that every draw diverges that is not above the limit from the start; undecided if all are."""
        flags = [True] * self.by_update + [False] * (self.draws - len(self.steps))
        claim = (
            f"At the rate {RATE:g} the unnormalized network diverges, its loss above {LOSS_LIMIT:g}, within "
            f"{self.minibatches} minibatches, in every draw whose first loss is below that."
        )
        return at_scale(in_every(claim, flags) if flags else check(claim, None), self.reduction)

    @property
    def by_update(self) -> int:
        """The number of draws that diverge by an update."""
        return sum(step > 0 for step in self.steps)

    def every(self, claim: str, flags: Sequence[bool], **numbers: float) -> Claim:
        """Return `in_every` over the draws that diverged by an update; undecided if none did."""
        claim = f"{claim}, in every draw that diverges by an update."
        return in_every(claim, flags, **numbers) if flags else check(claim, None)


def _diverged(
    setting: Initializations, along: Callable[..., pd.DataFrame], points: int, *further: float
) -> Divergence:
    """Measure along the diverging update of every draw whose loss is not above the limit before the first."""
    path = sorted({*np.linspace(0, 1, points).tolist(), *further})
    descents = [find_divergence(draw.model, draw.batches, RATE) for draw in setting.each(batch_norm=(False,))]
    updates = [descent.update for descent in descents if descent.diverged]
    steps = tuple(0 if update is None else update.step for update in updates)
    tables = tuple(
        along(moved.model, moved.inputs, moved.targets, moved.direction, path)
        for moved in updates
        if moved is not None
    )
    return Divergence(setting.draws, setting.minibatches, steps, tables, setting.reduction)


def _figure_5(diverged: Divergence) -> list[Claim]:
    losses = [table.set_index("point") for table in diverged.tables]
    ends = [(table["loss"][1.0], table["predicted_loss"][1.0]) for table in losses]
    early = [table["loss"][_NEAR] / table["loss"][0.0] for table in losses]
    return [
        diverged.diverges(),
        diverged.every(
            f"Divergence occurs within the first few minibatches, at most {_FIRST_FEW}",
            [step <= _FIRST_FEW for step in diverged.steps if step > 0],
            latest=max(diverged.steps, default=math.nan),
        ),
        diverged.every(
            f"The loss is unremarkable near the origin: after {_NEAR:.0%} of the update at most twice that before it",
            [bool(table["loss"][_NEAR] <= 2 * table["loss"][0.0]) for table in losses],
            largest_ratio=max(early, default=math.nan),
        ),
        diverged.every(
            "It explodes towards the end: after the update it is at least ten times that half-way (or not finite)",
            [not table["loss"][1.0] < 10 * table["loss"][_HALF] for table in losses],
            smallest_ratio=min((table["loss"][1.0] / table["loss"][_HALF] for table in losses), default=math.nan),
        ),
        diverged.every(
            "The gradient does not indicate it: the loss after the update is more than ten times what the gradient "
            "at the origin predicts",
            [not loss <= 10 * max(predicted, 0.0) for loss, predicted in ends],
            largest_prediction=max((predicted for _, predicted in ends), default=math.nan),
        ),
    ]


@artefact("understanding-bn/figure-5", basis="measurement", checks=_figure_5)
def loss_along_update(
    context: Context,
    *,
    data: DataName[str],
    batch_size: int,
    draws: Seeds[int],
    minibatches: Seeds[int],
    points: Seeds[int],
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws, minibatches)
    facts = _diverged(setting, loss_along, points, _NEAR, _HALF)
    quantities: dict[str, Estimate | float] = {
        "divergence_threshold": LOSS_LIMIT,
        "lr": RATE,
        "share of draws that diverge by an update": facts.by_update / draws,
        "share of draws with a loss above the threshold before the first update": facts.steps.count(0) / draws,
    }
    if facts.tables:
        losses = [table.set_index("point") for table in facts.tables]
        quantities["update that diverges"] = over_draws([step for step in facts.steps if step > 0])
        quantities |= {
            f"log10 of the loss after {point:g} of the update": decades_over_draws(
                table["loss"][point] for table in losses
            )
            for point in (0.0, _NEAR, _HALF, 1.0)
        }
        predicted = over_draws(table["predicted_loss"][1.0] for table in losses)
        quantities["loss after the update, by the gradient"] = predicted
    return setting.evidence_of(
        quantity_table(quantities),
        facts,
        draw=(lambda: LOSSES(facts.tables[0])) if facts.tables else None,
        rate=RATE,
        optimizer=OPTIMIZER,
        minibatches=minibatches,
    )


def _figure_6(diverged: Divergence) -> list[Claim]:
    checks = [diverged.diverges()]
    for moment, name in (("abs_mean", "|mean|"), ("variance", "variance")):
        parts = [table.pivot(index="point", columns="layers", values=moment) for table in diverged.tables]
        # A moment that is not finite at the end of the path has exploded there.
        upper, lower = ([_decades(part[side], 0.0, 1.0) for part in parts] for side in ("upper", "lower"))
        early, late = ([_decades(part["upper"], *ends) for part in parts] for ends in ((0.0, _HALF), (_HALF, 1.0)))
        checks += [
            diverged.every(
                f"The {name} of the upper layers grows by more than a decade",
                [grown > 1 for grown in upper],
                smallest_decades=min(upper, default=math.nan),
            ),
            diverged.every(
                f"The {name} of the lower layers stays relatively constant: it grows by less than a quarter of the "
                "decades of the upper layers",
                [grown < _CONSTANT * other for grown, other in zip(lower, upper, strict=True)],
                largest_decades=max(lower, default=math.nan),
                smallest_upper_decades=min(upper, default=math.nan),
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


@artefact("understanding-bn/figure-6", basis="measurement", checks=_figure_6)
def moments_along_path(
    context: Context,
    *,
    data: DataName[str],
    batch_size: int,
    draws: Seeds[int],
    minibatches: Seeds[int],
    points: Seeds[int],
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws, minibatches)
    by_layer = _diverged(setting, moments_along, points, _HALF)
    facts = replace(by_layer, tables=tuple(_by_part(table) for table in by_layer.tables))
    columns = ["draw", "point", "layers", "abs_mean", "variance"]
    measured = [table.assign(draw=number)[columns] for number, table in enumerate(facts.tables)]
    return setting.evidence_of(
        pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=columns),
        facts,
        draw=(lambda: _moments(by_layer.tables[0])) if facts.tables else None,
        rate=RATE,
        optimizer=OPTIMIZER,
        minibatches=minibatches,
    )


def _by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Return medians of the moments over the lowest, the middle and the highest layers, at every point."""
    parts = []
    for name, (first, last) in _PARTS.items():
        rows = table[table["order"].between(first, last)]
        parts.append(rows.groupby("point")[["abs_mean", "variance"]].median().reset_index().assign(layers=name))
    return pd.concat(parts, ignore_index=True)


def _decades(moments: pd.Series, start: float, end: float) -> float:
    """Return log₁₀ of a moment's growth between two points of the path; infinite if it overflows at the end."""
    first, last = float(moments[start]), float(moments[end])
    return math.log10(last / first) if math.isfinite(last) else math.inf


def _moments(table: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    names = [f"{point:g}" for point in sorted(table["point"].unique())]
    sides = {
        "abs_mean": ("Channel means along the update", "|channel mean|"),
        "variance": ("Channel variances", "channel variance"),
    }
    for axes, (moment, (title, of)) in zip(panels, sides.items(), strict=True):
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
            y_label=f"mean of {of}, by part of the update",
        )
    return panels[0]


# The loss along a direction, and its prediction by the gradient at the start.
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


# Rates of training up to the fifth minibatch, by batch norm.
TRAINING_RATES = {False: 1e-4, True: 0.1}
_SHORTEST, _LONGEST = 1e-6, 16.0


@artefact("understanding-bn/figure-24", basis="measurement")
def loss_along_gradient(
    context: Context, *, data: DataName[str], batch_size: int, draws: Seeds[int], factor: float
) -> Evidence:
    setting = Initializations(context, data, batch_size, draws, minibatches=5)
    count = int(np.log(_LONGEST / _SHORTEST) / np.log(factor)) + 1
    steps = [_SHORTEST * factor**power for power in range(count)]
    losses = cache(lambda draw: _losses(draw, steps))

    def longest(draw: Draw) -> pd.DataFrame:
        by_minibatch = losses(draw).groupby("minibatch")[["point", "loss"]]
        return by_minibatch.apply(_longest_useful_step).rename("step").reset_index()

    return setting.evidence(
        longest,
        "Steps are along the gradient of the minibatch itself, in units of the learning rate of plain gradient "
        f"descent. If no step lowers the loss, the longest counts as {_SHORTEST:g}. The figure shows the first draw, "
        "without losses above a thousand times the initial one.",
        quantities=_longest_steps,
        draw=lambda: _landscapes(setting.shown(losses)),
        steps=f"from {steps[0]:g} to {steps[-1]:g} by factors of {factor:g}",
        optimizer=OPTIMIZER,
    )


def _longest_steps(facts: MeasuredDraws) -> dict[str, Estimate | float]:
    """Return the rates of the training, and the longest steps."""
    rates = {"lr_unnormalized": TRAINING_RATES[False], "lr_batch_norm": TRAINING_RATES[True]}
    return rates | {
        f"log10 of the longest step that lowers the loss, minibatch {minibatch}, {name} batch norm": decades(
            rows[rows["minibatch"] == minibatch]["step"]
        )
        for minibatch in (1, 5)
        for name, rows in zip(("without", "with"), facts.both, strict=True)
    }


def _losses(draw: Draw, steps: Sequence[float]) -> pd.DataFrame:
    """Measure the losses of the first and the fifth minibatch of a training, along their gradients."""

    def along(minibatch: int) -> pd.DataFrame:
        batch = draw.batches[minibatch - 1]
        direction = steepest_descent(draw.model, *batch)
        return loss_along(draw.model, *batch, direction, [0.0, *steps]).assign(minibatch=minibatch)

    optimizer = momentum_sgd(draw.model.train(), TRAINING_RATES[draw.batch_norm])
    first = along(1)
    for _ in descend(draw.model, draw.batches[:4], optimizer):
        pass
    return pd.concat([first, along(5)])


def _longest_useful_step(rows: pd.DataFrame) -> float:
    """Return the longest step that lowers the loss, interpolated between points in the logarithms of both."""
    losses = rows.sort_values("point").set_index("point")["loss"]
    start, tried = float(losses.iloc[0]), losses.iloc[1:]
    lower = tried.index[tried < start]
    if not len(lower):
        return _SHORTEST
    longest = float(lower.max())
    beyond = tried[tried.index > longest]
    if beyond.empty or not np.isfinite(beyond.iloc[0]) or tried[longest] <= 0:
        return longest
    below, above = float(np.log(start / tried[longest])), float(np.log(beyond.iloc[0] / tried[longest]))
    share = below / above if above > 0 else 0.0
    return float(longest * (float(beyond.index[0]) / longest) ** share)


def _landscapes(first: pd.DataFrame) -> Axes:
    panels = new_panels(2)
    for axes, minibatch in zip(panels, (1, 5), strict=True):
        rows = first[first["minibatch"] == minibatch]
        start = rows[rows["point"] == 0].set_index("scheme")["loss"]
        shown = rows[(rows["loss"] < 1e3 * rows["scheme"].map(start)) & (rows["point"] > 0)]
        LOSSES(shown, axes, title=f"Minibatch {minibatch}", x_label="step along -∇L", log="xy?")
    return panels[0]
