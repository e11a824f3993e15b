"""The highest learning rates that other architectures train at: table 3, warm start, alternating normalization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.nn.alternating import AlternatingBatchNorm2d
from normless.papers.agreement import ROUNDING, Agreement, agreement
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import chosen, failures, final_table, setup_of
from normless.papers.trained import best_accuracy, highest_trained_rate
from normless.papers.understanding_bn.protocol import FIRST_EPOCHS, SCHEMES, Effort
from normless.papers.verdict import Check, check
from normless.report.palette import Ink
from normless.report.probes.series import series_ink
from normless.report.rate_outcomes import accuracy_against_rate

AXIS = "architecture"
BARE, WARM, ALTERNATING, NORMALIZED = (
    "unnormalized",
    "unnormalized_warm_start",
    "alternating_normalization",
    "batch_norm",
)
WARM_START_RATE = 1e-4

# Depth (None for the effort's), scheme and further settings of each architecture.
ARCHITECTURES: Mapping[str, tuple[int | None, str, Mapping[str, Any]]] = {
    "resnet_32": (32, "none", {}),
    "resnet_56": (56, "none", {}),
    BARE: (None, "none", {}),
    WARM: (None, "none", {"warm_start_epochs": 1, "warm_start_rate": WARM_START_RATE}),
    ALTERNATING: (None, "alternating", {}),
    NORMALIZED: (None, "batch norm", {}),
}
_INKS: dict[str, Ink] = {name.replace("_", " "): series_ink(place) for place, name in enumerate(ARCHITECTURES)}


def achievable(context: Context, effort: Effort, names: Sequence[str]) -> SweepResult:
    """Train some architectures at every rate of the effort, for the paper's first number of epochs."""
    axis = {}
    for name in names:
        depth, scheme, settings = ARCHITECTURES[name]
        axis[name] = {"model": effort.network(depth), "scheme": SCHEMES[scheme], **settings}
    settings = {"epochs": max(2, effort.epochs(FIRST_EPOCHS))}
    return context.lab.run(effort.sweep(context, "highest rates", {AXIS: axis}, settings=settings))


def _highest(result: SweepResult) -> pd.DataFrame:
    """A row per architecture: `lr`, the highest rate at which every run trained (0: none); the lowest tried."""
    table = final_table(result)
    rows = []
    for name in result.sweep.axes[AXIS]:
        runs = chosen(table, **{AXIS: name})
        counts = runs["outcome"].value_counts()
        row: dict[str, Any] = {
            AXIS: name,
            "lr": highest_trained_rate(runs, best_accuracy(table)),
            "lowest_tried": runs["rate"].min(),
        }
        rows.append(row | {"runs": len(runs)} | {end: int(counts.get(end, 0)) for end in ("diverged", "chance")})
    return pd.DataFrame(rows)


def _figure(result: SweepResult) -> Axes:
    runs = final_table(result)
    runs[AXIS] = runs[AXIS].str.replace("_", " ")
    return accuracy_against_rate(runs, series=AXIS, inks=_INKS, title="Rates that architectures train at")


def _is_rate(claim: str, measured: float, expected: float) -> Check:
    return check(
        claim,
        None if math.isnan(measured) else math.isclose(measured, expected),
        measured=measured,
        expected=expected,
    )


def _above(claim: str, first: float, second: float, *, times: float = 1.0) -> Check:
    """first > times · second; not decided where the runs of one of them raised."""
    known = not (math.isnan(first) or math.isnan(second))
    return check(claim, first > times * second if known else None, first=first, second=second, times=times)


@artefact("understanding-bn/table-3", basis="training")
def highest_rates(context: Context, *, effort: Effort) -> Evidence:
    """Table 3: shallower networks without norm tolerate larger rates, as do a warm start and alternating norms."""
    result = achievable(context, effort, ("resnet_32", "resnet_56", BARE, WARM, ALTERNATING))
    measured = _highest(result)
    rates = dict(zip(measured[AXIS], measured["lr"], strict=True))
    printed = {"resnet_32": 0.1, "resnet_56": 0.01, BARE: 1e-4, WARM: 0.01, ALTERNATING: 0.01}
    checks = [
        _is_rate(f"The highest rate of {name.replace('_', ' ')} is {rate:g}.", rates[name], rate)
        for name, rate in printed.items()
    ]
    checks += [
        _above("32 layers tolerate a larger rate than 56.", rates["resnet_32"], rates["resnet_56"]),
        _above(
            f"56 layers tolerate a larger rate than {effort.depth}."
            if effort.depth > 56
            else f"56 layers tolerate a larger rate than 110 (the deepest here has {effort.depth}).",
            rates["resnet_56"],
            rates[BARE],
        ),
        _above("A warm start raises the largest rate.", rates[WARM], rates[BARE]),
    ]
    return Evidence(
        measured,
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        on=(AXIS,),
        draw=lambda: _figure(result),
        remarks=(
            "A rate is tolerated if every run at it trained: none diverged or stayed at chance. 0 stands where no "
            f"rate is. `unnormalized` is the network of {effort.depth} layers without a warm start.",
            *failures(result),
        ),
    )


@artefact("understanding-bn/warm-start", basis="formula")
def warm_start(context: Context, *, effort: Effort) -> Evidence:
    """Appendix J: one epoch at rate 0.0001 raises the largest usable rate, but not to a normalized one's."""
    result = achievable(context, effort, (BARE, WARM, NORMALIZED))
    table, rates = final_table(result), dict(_highest(result).set_index(AXIS)["lr"])
    hashes = set(chosen(table, **{AXIS: WARM})["hash"])
    first = result.epochs[(result.epochs["epoch"] == 1) & result.epochs["hash"].isin(hashes)]
    checks = [
        check(
            "The first epoch of every warm start is trained at rate 0.0001.",
            bool((first["epoch_rate"] == WARM_START_RATE).all()) if len(first) else None,
            epochs=len(first),
            highest_rate=first["epoch_rate"].max(),
        ),
        *qualified(
            [
                _is_rate("The largest usable rate after it is 0.01.", rates[WARM], 0.01),
                _above("It is larger than without a warm start.", rates[WARM], rates[BARE]),
                _above("With batch norm it is larger still.", rates[NORMALIZED], rates[WARM]),
            ],
            effort.reduction,
        ),
    ]
    values = {
        "warm_start_lr": first["epoch_rate"].max() if len(first) else math.nan,
        "warm_start_epochs": 1,
        "achievable_lr": rates[WARM],
        "achievable rate without a warm start": rates[BARE],
        "achievable rate with batch norm": rates[NORMALIZED],
    }
    return Evidence(
        pd.DataFrame([{"quantity": name, "value": float(value)} for name, value in values.items()]),
        tuple(checks),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _figure(result),
        remarks=failures(result),
    )


@artefact("understanding-bn/alternating-normalization", basis="formula")
def alternating_normalization(context: Context, *, effort: Effort) -> Evidence:
    """Section 3.4: statistics of every other batch allow for learning rates only up to 0.01."""
    result = achievable(context, effort, (ALTERNATING, NORMALIZED))
    rates = dict(_highest(result).set_index(AXIS)["lr"])
    agreements = _alternation(context)
    checks = [
        *(one.check() for one in agreements),
        *qualified(
            [
                _is_rate("The largest usable rate is 0.01.", rates[ALTERNATING], 0.01),
                _above("With batch norm it is larger.", rates[NORMALIZED], rates[ALTERNATING]),
            ],
            effort.reduction,
        ),
    ]
    values = {"achievable_lr": rates[ALTERNATING], "achievable rate with batch norm": rates[NORMALIZED]}
    return Evidence(
        pd.DataFrame([{"quantity": name, "value": float(value)} for name, value in values.items()]),
        tuple(checks),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _figure(result),
        remarks=("Stored statistics are constants on the batches that reuse them.", *failures(result)),
    )


def _alternation(context: Context) -> list[Agreement]:
    """The layer on four batches against the formula with the statistics of the first or third batch."""
    with seeded(context.seed):
        batches = [3 * torch.randn(8, 4, 5, 5, dtype=torch.float64) + place for place in range(4)]
    layer, found = AlternatingBatchNorm2d(4).double(), []
    for place, batch in enumerate(batches):
        source = batches[place - place % 2]
        mean = source.mean((0, 2, 3), keepdim=True)
        variance = (source - mean).square().mean((0, 2, 3), keepdim=True)
        expected = (batch - mean) / (variance + layer.eps).sqrt()
        whose = "its own statistics" if place % 2 == 0 else f"those of batch {place}"
        found.append(agreement(f"Batch {place + 1} is normalized with {whose}", layer(batch), expected, ROUNDING))
    return found
