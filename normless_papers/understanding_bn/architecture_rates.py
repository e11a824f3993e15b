"""The highest learning rates that other architectures train at: table 3, warm start, alternating normalization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.nn import AlternatingBatchNorm2d
from normless.plots import Ink, accuracy_against_rate, series_ink
from normless.spec import parse_call
from normless_papers.agreement import ROUNDING, Agreement, agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, check, larger, quantity_table
from normless_papers.effort import Effort
from normless_papers.runs import Runs, carry_out
from normless_papers.seeded_inputs import seeded
from normless_papers.trained import best_accuracy, highest_trained_rate
from normless_papers.understanding_bn.best_rates import highest_decade, is_rate
from normless_papers.understanding_bn.protocol import SCHEMES

AXIS = "architecture"
UNNORMALIZED, WARM, ALTERNATING, NORMALIZED = (
    "unnormalized",
    "unnormalized_warm_start",
    "alternating_normalization",
    "batch_norm",
)
SHALLOW, MIDDLE = "resnet_32", "resnet_56"

# The scheme of each architecture.
ARCHITECTURES: Mapping[str, str] = {
    SHALLOW: "none",
    MIDDLE: "none",
    UNNORMALIZED: "none",
    WARM: "none",
    ALTERNATING: "alternating",
    NORMALIZED: "batch norm",
}
# Table 3, and section 2 for the unnormalized network.
PRINTED: Mapping[str, float] = {SHALLOW: 0.1, MIDDLE: 0.01, UNNORMALIZED: 1e-4, WARM: 0.01, ALTERNATING: 0.01}
_INKS: dict[str, Ink] = {name.replace("_", " "): series_ink(place) for place, name in enumerate(ARCHITECTURES)}


@dataclass(frozen=True)
class ArchitectureRuns:
    """Runs of some architectures at every rate of a grid, batch norm among them.

    Attributes:
        runs: with the axis `architecture`.
        warm_rate: the prescribed rate of warm starts.
        first_rates: the learning rates of their first epochs in training.
        alternation: of the layer of the alternating scheme with its formula; empty if not measured.
    """

    runs: Runs
    warm_rate: float
    first_rates: tuple[float, ...] = ()
    alternation: tuple[Agreement, ...] = ()

    @property
    def control(self) -> Estimate:
        """The accuracy with batch norm at its best rate."""
        return best_accuracy(self._of(NORMALIZED))

    def highest(self, name: str) -> float:
        """The highest rate at which an architecture trains, by the means over replicates; 0 if it trains at none."""
        return highest_trained_rate(self._of(name), self.control)

    def decade(self, name: str) -> Estimate:
        """log₁₀ of the highest rate, by seed."""
        return highest_decade(self._of(name), self.control)

    def is_printed(self, name: str) -> Check:
        """Whether the highest rate is the published one; decided only for the paper's set-up."""
        words, rate = name.replace("_", " "), PRINTED[name]
        return at_scale(
            is_rate(f"The highest rate of {words} is {rate:g}.", self.highest(name), rate), self.runs.reduction
        )

    def above(self, claim: str, higher: str, lower: str) -> Check:
        """Whether the highest rate of one architecture is above another's."""
        return larger(f"{claim} (log₁₀ of the rates).", self.decade(higher), self.decade(lower))

    def _of(self, name: str) -> pd.DataFrame:
        return self.runs.chosen(**{AXIS: name})


def achievable(context: Context, effort: Effort, names: Sequence[str]) -> ArchitectureRuns:
    """Train some architectures at every rate of the effort, for the paper's first number of epochs."""
    axis = {name: {**effort.variants.get(name, {}), "scheme": SCHEMES[ARCHITECTURES[name]]} for name in names}
    warm = effort.variants["warm_start"]
    if WARM in axis:
        axis[WARM] |= warm
    sweep = effort.sweep(context, "highest rates", {AXIS: axis})
    runs = carry_out(context, sweep, reduction=effort.reduction(context))
    epochs = runs.epochs
    if len(epochs):
        epochs = epochs[(epochs[AXIS] == WARM) & (epochs["epoch"] <= warm["warm_start_epochs"])]
    first = tuple(float(one) for one in epochs["epoch_rate"]) if len(epochs) else ()
    return ArchitectureRuns(runs, warm["warm_start_rate"], first)


def _layers(name: str, effort: Effort) -> int:
    model = effort.variants.get(name, {}).get("model", effort.model)
    return int(parse_call(model.partition(":")[2])[1]["depth"])


def _highest(runs: ArchitectureRuns, effort: Effort) -> pd.DataFrame:
    """A row per architecture: `lr`, its highest trained rate (0: none); its layers; the lowest rate tried."""
    rows = []
    for name, own in runs.runs.table.groupby(AXIS, sort=False):
        counts = own["outcome"].value_counts()
        row: dict[str, Any] = {AXIS: name, "lr": runs.highest(str(name)), "layers": _layers(str(name), effort)}
        row["lowest_tried"] = own["rate"].min()
        rows.append(row | {"runs": len(own)} | {end: int(counts.get(end, 0)) for end in ("diverged", "chance")})
    return pd.DataFrame(rows)


def _figure(runs: ArchitectureRuns) -> Axes:
    table = runs.runs.table
    table = table.assign(**{AXIS: table[AXIS].str.replace("_", " ")})
    return accuracy_against_rate(table, series=AXIS, inks=_INKS, title="Rates that architectures train at")


def _table_3(runs: ArchitectureRuns) -> list[Check]:
    return [
        *(runs.is_printed(name) for name in PRINTED),
        runs.above("32 layers, or what stands for them, tolerate a larger rate than 56", SHALLOW, MIDDLE),
        runs.above("56 layers, or what stands for them, tolerate a larger rate than 110", MIDDLE, UNNORMALIZED),
        runs.above("A warm start raises the largest rate", WARM, UNNORMALIZED),
        runs.above("Alternating normalization allows for a larger rate than none", ALTERNATING, UNNORMALIZED),
    ]


@artefact("understanding-bn/table-3", basis="training", checks=_table_3)
def highest_rates(context: Context, *, effort: Effort) -> Evidence:
    """Table 3: shallower networks without norm tolerate larger rates, as do a warm start and alternating norms."""
    runs = achievable(context, effort, tuple(ARCHITECTURES))
    return runs.runs.evidence(
        _highest(runs, effort),
        lambda: _figure(runs),
        facts=runs,
        on=(AXIS,),
        remarks=(
            "A rate is tolerated if the network trains at it, by the mean over replicates: it has half of what batch "
            "norm gains over chance at its best rate. 0 stands where no rate is. `unnormalized` is the deepest "
            "network without a warm start; `layers` are those of the networks that stand for the published ones.",
        ),
    )


def _warm_start(runs: ArchitectureRuns) -> list[Check]:
    first = runs.first_rates
    return [
        check(
            f"The first epochs of every warm start are trained at the rate {runs.warm_rate:g}.",
            set(first) == {runs.warm_rate} if first else None,
            epochs=len(first),
            smallest=min(first, default=math.nan),
            largest=max(first, default=math.nan),
        ),
        runs.is_printed(WARM),
        runs.above("The largest usable rate after it is larger than without a warm start", WARM, UNNORMALIZED),
        runs.above("With batch norm it is larger still", NORMALIZED, WARM),
    ]


@artefact("understanding-bn/warm-start", basis="training", checks=_warm_start)
def warm_start(context: Context, *, effort: Effort) -> Evidence:
    """Appendix J: one epoch at rate 0.0001 raises the largest usable rate, but not to a normalized one's."""
    runs = achievable(context, effort, (UNNORMALIZED, WARM, NORMALIZED))
    return runs.runs.evidence(
        quantity_table(
            {
                "warm_start_lr": max(runs.first_rates, default=math.nan),
                "warm_start_epochs": effort.variants["warm_start"]["warm_start_epochs"],
                "achievable_lr": runs.highest(WARM),
                "achievable rate without a warm start": runs.highest(UNNORMALIZED),
                "achievable rate with batch norm": runs.highest(NORMALIZED),
            }
        ),
        lambda: _figure(runs),
        facts=runs,
        on=("quantity",),
    )


def _alternating_normalization(runs: ArchitectureRuns) -> list[Check]:
    return [
        *(one.check() for one in runs.alternation),
        runs.is_printed(ALTERNATING),
        runs.above("With batch norm the largest usable rate is larger", NORMALIZED, ALTERNATING),
    ]


@artefact("understanding-bn/alternating-normalization", basis="training", checks=_alternating_normalization)
def alternating_normalization(context: Context, *, effort: Effort) -> Evidence:
    """Section 3.4: statistics of every other batch allow for learning rates only up to 0.01."""
    runs = achievable(context, effort, (ALTERNATING, NORMALIZED))
    return runs.runs.evidence(
        quantity_table(
            {
                "achievable_lr": runs.highest(ALTERNATING),
                "achievable rate with batch norm": runs.highest(NORMALIZED),
            }
        ),
        lambda: _figure(runs),
        facts=replace(runs, alternation=_alternation(context)),
        on=("quantity",),
        remarks=("Stored statistics are constants on the batches that reuse them.",),
    )


def _alternation(context: Context) -> tuple[Agreement, ...]:
    """The layer on four batches against the formula with the statistics of the first or third batch."""
    with seeded(context.seed):
        batches = [3 * torch.randn(8, 4, 5, 5, dtype=torch.float64) + place for place in range(4)]
    layer, agreements = AlternatingBatchNorm2d(4).double(), []
    for place, batch in enumerate(batches):
        source = batches[place - place % 2]
        mean = source.mean((0, 2, 3), keepdim=True)
        variance = (source - mean).square().mean((0, 2, 3), keepdim=True)
        expected = (batch - mean) / (variance + layer.eps).sqrt()
        whose = "its own statistics" if place % 2 == 0 else f"those of batch {place}"
        agreements.append(
            agreement(f"Batch {place + 1} is normalized with {whose}", layer(batch), expected, ROUNDING)
        )
    return tuple(agreements)
