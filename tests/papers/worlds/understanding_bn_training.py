"""What runs, single updates, noise and layers of the Understanding BN paper give, as published and the opposite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log2, log10
from typing import Any

import pandas as pd
from papers_runs import End, Ends, evidence_of

from normless_lab.sweeps import Point
from normless_papers.claims import Estimate
from normless_papers.published import published_as
from normless_papers.understanding_bn import architecture_rates as architectures, reference_runs as reference
from normless_papers.understanding_bn.initializations import MeasuredDraws
from normless_papers.understanding_bn.rate_search import AXIS as PARTS_AXIS, CENTRED, NONE, NORMALIZED, SCALED, WHOLE
from normless_papers.understanding_bn.single_updates import Divergence
from worlds.world import World, ended, given

PAPER = "understanding-bn"
FIRST_EPOCHS = 165
GAIN = published_as(f"{PAPER}/figure-17").rows[0]["value"]
TOP = published_as(f"{PAPER}/figure-16").rows[0]["value"]
TABLE_2 = {", ".join(row["parts"]): row for row in published_as(f"{PAPER}/table-2").rows}
TABLE_3 = {row["architecture"]: row["lr"] for row in published_as(f"{PAPER}/table-3").rows}
WARM_RATE = published_as(f"{PAPER}/warm-start").rows[0]["value"]
THRESHOLD = published_as(f"{PAPER}/figure-5").rows[0]["value"]
STABLE, DIVERGING = (row["value"] for row in published_as(f"{PAPER}/maximal-learning-rate").rows)
RATES = {row["quantity"]: row["value"] for row in published_as(f"{PAPER}/figure-24").rows}
DRAWS = range(5)

# Test accuracies at the best rates: the text has the gain of the affine part alone as a number.
ACCURACIES = {WHOLE: 93.0, NORMALIZED: 93.0 - GAIN, SCALED: 88.0, CENTRED: 85.0, NONE: 80.0}
# Of the opposite: test accuracy, best rate and doublings; what is not named is as `WHOLE`.
OPPOSITE_PARTS = {
    WHOLE: (90.0, 3e-3, 0),
    NORMALIZED: (80.0, 3e-5, 4),
    SCALED: (85.0, 1e-4, 0),
    CENTRED: (85.0, 1e-3, 0),
    NONE: (85.0, 1e-2, 0),
}


def parts(labels: Mapping[str, str], point: Point) -> End:
    """Up to its best rate a network is the better the larger the rate, beyond it diverges."""
    name = labels[PARTS_AXIS]
    row = TABLE_2[name]
    if point.rate > 1.01 * row["lr"]:
        return End(None, 99.0)
    doublings = round(log2(row["epochs"] / FIRST_EPOCHS))
    test = ACCURACIES.get(name, ACCURACIES[WHOLE]) - 2 * log10(row["lr"] / point.rate)
    return End(test, 99.0, doublings=doublings)


def opposite_parts(labels: Mapping[str, str], point: Point) -> End:
    """Networks train beyond their best rate too, and worse; batch norm alone does not."""
    name = labels[PARTS_AXIS]
    accuracy, best, doublings = OPPOSITE_PARTS.get(name, OPPOSITE_PARTS[WHOLE])
    if point.rate > 1.01 * best:
        return End(None if name == WHOLE else 60.0, 99.0, doublings=doublings)
    return End(accuracy - 2 * log10(best / point.rate), 99.0, doublings=doublings)


def experimental_setup(right: bool) -> Any:
    if right:
        return evidence_of(f"{PAPER}/experimental-setup", parts)
    facts = evidence_of(f"{PAPER}/experimental-setup", opposite_parts).facts
    return facts[0], (0.3,), (2.0,)


NAMES = (reference.NONE, reference.LOW, reference.MIDDLE, reference.HIGH, reference.TOP)
# Test and training accuracies, and losses.
REFERENCE = dict(
    zip(
        NAMES,
        (End(80.0, 90.0, 0.1), End(80.2, 100.0, 0.001), End(90.0, 99.5), End(93.0, 99.0, 0.02), End(TOP, 96.0, 0.1)),
        strict=True,
    )
)
OPPOSITE_REFERENCE = {
    "figure-1": dict(
        zip(NAMES, (End(70.0, 100.0, 0.1), End(90.0, 90.0, 0.5), End(85.0, 90.0), End(80.0, 95.0)), strict=False)
    ),
    "bn-on-top": {reference.NONE: End(40.0, 99.0), reference.HIGH: End(80.0, 99.0), reference.TOP: End(10.0, 99.0)},
    "figure-15": {reference.NONE: End(40.0, 99.0), reference.HIGH: End(80.0, 99.0), reference.TOP: End(80.0, 50.0)},
    "figure-16": {reference.NONE: End(80.0, 99.0), reference.HIGH: End(20.0, 99.0), reference.TOP: End(30.0, 99.0)},
}


def as_reference(ends: Mapping[str, End]) -> Ends:
    return lambda labels, _: ends[labels[reference.AXIS]]


def on_top(right: bool) -> Any:
    """Gradients at initialization two orders larger without norms, as in figure 2."""
    ends = REFERENCE if right else OPPOSITE_REFERENCE["bn-on-top"]
    sizes = {"none": 2.0, "batch norm": 0.0, "batch norm on top": 0.2 if right else 1.9}
    scales = {name: Estimate(size, 0.0, 3, dict.fromkeys(range(3), size)) for name, size in sizes.items()}
    return evidence_of(f"{PAPER}/figure-16", as_reference(ends)).facts, scales


HIGHEST = {
    **TABLE_3,
    architectures.UNNORMALIZED: TABLE_2[NONE]["lr"],
    architectures.NORMALIZED: TABLE_2[WHOLE]["lr"],
}
OPPOSITE_HIGHEST = {
    architectures.SHALLOW: 3e-4,
    architectures.MIDDLE: 1e-3,
    architectures.UNNORMALIZED: 3e-2,
    architectures.WARM: 1e-3,
    architectures.ALTERNATING: 2e-3,
    architectures.NORMALIZED: 1e-4,
}


def up_to(highest: Mapping[str, float], warm: float | None) -> Ends:
    """Every architecture trains up to its highest rate; the first epoch of a warm start has a rate of its own."""

    def end(labels: Mapping[str, str], point: Point) -> End:
        name = labels[architectures.AXIS]
        first = warm if name == architectures.WARM else None
        return End(None if point.rate > 1.01 * highest[name] else 90.0, 99.0, first_rate=first)

    return end


SLOWER, FASTER = up_to(HIGHEST, WARM_RATE), up_to(OPPOSITE_HIGHEST, None)


def alternating(right: bool) -> Any:
    evidence = evidence_of(f"{PAPER}/alternating-normalization", SLOWER if right else FASTER)
    if right:
        return evidence
    wrong = [replace(agreement, deviation=1.0) for agreement in evidence.facts["alternation"]]
    return evidence.facts | {"alternation": wrong}


def figure_5(right: bool) -> Divergence:
    """Losses along an update that diverges, and what the gradient says of its end."""
    losses = {0.0: 2.3, 0.05: 2.3, 0.5: 3.0, 1.0: 10 * THRESHOLD}
    if not right:
        losses = {0.0: 1.0, 0.05: 0.1 * THRESHOLD, 0.5: 0.8 * THRESHOLD, 1.0: THRESHOLD}
    start, end = losses[0.0], 1.0 if right else THRESHOLD
    rows = [
        {"point": point, "loss": loss, "predicted_loss": start + point * (end - start)}
        for point, loss in losses.items()
    ]
    return diverged(pd.DataFrame(rows), right, 20 if right else 200, 3 if right else 150)


def figure_6(right: bool) -> Divergence:
    """Moments of the upper and of the lower layers along it."""
    upper = {0.0: 1.0, 0.5: 2.0, 1.0: 1e4 if right else 1.0}
    lower = {0.0: 1.0, 0.5: 1.05, 1.0: 1.2} if right else {0.0: 1.0, 0.5: 10.0, 1.0: 1e4}
    rows = [
        {"point": point, "layers": layers, "abs_mean": moment, "variance": moment**2}
        for layers, moments in (("upper", upper), ("lower", lower))
        for point, moment in moments.items()
    ]
    return diverged(pd.DataFrame(rows), right, 20, 3)


def diverged(table: pd.DataFrame, right: bool, updates: int, step: int) -> Divergence:
    """All draws alike, or two of five."""
    count = len(DRAWS) if right else 2
    return Divergence(len(DRAWS), updates, (step,) * count, (table,) * count)


def longest(ratio: float) -> MeasuredDraws:
    rows = [
        {"batch_norm": kind, "draw": draw, "minibatch": minibatch, "step": step}
        for minibatch in (1, 5)
        for draw in DRAWS
        for kind, step in ((False, 1e-3), (True, 1e-3 * ratio * (1 + 0.01 * draw)))
    ]
    return MeasuredDraws(pd.DataFrame(rows))


def stable(with_norm: float, without: float, *, first: bool, ten: bool) -> MeasuredDraws:
    """Without reduction: as the paper's own set-up would have it."""
    rows = [
        {"batch_norm": kind, "draw": draw, "largest": largest, "first_stable": first, "ten_diverged": ten}
        | {"smallest_diverging": 2 * largest}
        for kind, largest in ((True, with_norm), (False, without))
        for draw in DRAWS
    ]
    return MeasuredDraws(pd.DataFrame(rows))


_UNNORMALIZED = RATES["lr_unnormalized"]
RUNS: dict[str, tuple[Ends, Ends]] = {
    "table-2": (parts, opposite_parts),
    "figure-17": (parts, opposite_parts),
    "table-3": (SLOWER, FASTER),
    "warm-start": (SLOWER, FASTER),
    **{
        name: (as_reference(REFERENCE), as_reference(OPPOSITE_REFERENCE[name]))
        for name in ("figure-1", "figure-15", "figure-16")
    },
}
MEASURED: dict[str, World] = {
    "experimental-setup": experimental_setup,
    "bn-on-top": on_top,
    "alternating-normalization": alternating,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-24": given(longest(RATES["lr_batch_norm"] / _UNNORMALIZED), longest(1.0)),
    "maximal-learning-rate": given(
        stable(STABLE, _UNNORMALIZED, first=True, ten=DIVERGING == 10),
        stable(_UNNORMALIZED, STABLE, first=False, ten=False),
    ),
}
WORLDS: dict[str, World] = {f"{PAPER}/{name}": world for name, world in MEASURED.items()}
WORLDS |= {f"{PAPER}/{name}": ended(f"{PAPER}/{name}", *both) for name, both in RUNS.items()}
