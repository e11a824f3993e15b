"""What training runs and diverging networks of the Understanding BN paper give, as published and as the opposite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import log2, log10
from pathlib import Path
from typing import Any

from swept_runs import End, swept
from worlds.world import World

from normless_lab.sweeps import Point
from normless_papers.claims import Estimate
from normless_papers.published import published_as
from normless_papers.understanding_bn import architecture_rates as architectures
from normless_papers.understanding_bn import reference_runs as reference
from normless_papers.understanding_bn.rate_search import AXIS as PARTS_AXIS
from normless_papers.understanding_bn.rate_search import CENTRED, NONE, NORMALIZED, SCALED, WHOLE

PAPER = "understanding-bn"
FIRST_EPOCHS = 165
GAIN = published_as(f"{PAPER}/figure-17").rows[0]["value"]
TOP = published_as(f"{PAPER}/figure-16").rows[0]["value"]
TABLE_2 = {", ".join(row["parts"]): row for row in published_as(f"{PAPER}/table-2").rows}
TABLE_3 = {row["architecture"]: row["lr"] for row in published_as(f"{PAPER}/table-3").rows}
WARM_RATE = published_as(f"{PAPER}/warm-start").rows[0]["value"]

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


def _parts(labels: Mapping[str, str], point: Point) -> End:
    """Up to its best rate a network is the better the larger the rate, beyond it diverges."""
    parts = labels[PARTS_AXIS]
    row = TABLE_2[parts]
    if point.rate > 1.01 * row["lr"]:
        return End(None)
    doublings = round(log2(row["epochs"] / FIRST_EPOCHS))
    return End(ACCURACIES.get(parts, ACCURACIES[WHOLE]) - 2 * log10(row["lr"] / point.rate), doublings=doublings)


def _opposite_parts(labels: Mapping[str, str], point: Point) -> End:
    """Networks train beyond their best rate too, and worse; batch norm alone does not."""
    parts = labels[PARTS_AXIS]
    accuracy, best, doublings = OPPOSITE_PARTS.get(parts, OPPOSITE_PARTS[WHOLE])
    if point.rate > 1.01 * best:
        return End(None if parts == WHOLE else 60.0, doublings=doublings)
    return End(accuracy - 2 * log10(best / point.rate), doublings=doublings)


def _setup_opposite(folder: Path) -> Any:
    facts = swept(f"{PAPER}/experimental-setup", _opposite_parts, folder).facts
    return facts[0], (0.3,), (2.0,)


REFERENCE = {
    reference.NONE: End(80.0, 90.0, 0.1),
    reference.LOW: End(80.2, 100.0, 0.001),
    reference.MIDDLE: End(90.0, 99.5, 0.01),
    reference.HIGH: End(93.0, 99.0, 0.02),
    reference.TOP: End(TOP, 96.0, 0.1),
}
OPPOSITE_REFERENCE = {
    "figure-1": {
        reference.NONE: End(70.0, 100.0, 0.1),
        reference.LOW: End(90.0, 90.0, 0.5),
        reference.MIDDLE: End(85.0, 90.0),
        reference.HIGH: End(80.0, 95.0),
    },
    "bn-on-top": {reference.NONE: End(40.0), reference.HIGH: End(80.0), reference.TOP: End(10.0)},
    "figure-15": {reference.NONE: End(40.0), reference.HIGH: End(80.0), reference.TOP: End(80.0, 50.0)},
    "figure-16": {reference.NONE: End(80.0), reference.HIGH: End(20.0), reference.TOP: End(30.0)},
}


def _reference(ends: Mapping[str, End], labels: Mapping[str, str], point: Point) -> End:
    return ends[labels[reference.AXIS]]


def _on_top(ends: Mapping[str, End], top: float, folder: Path) -> Any:
    """Gradients at initialization two orders larger without norms, as in figure 2."""
    facts = swept(f"{PAPER}/figure-16", partial(_reference, ends), folder).facts
    sizes = {"none": 2.0, "batch norm": 0.0, "batch norm on top": top}
    scales = {name: Estimate(size, 0.0, 3, dict.fromkeys(range(3), size)) for name, size in sizes.items()}
    return facts, scales


def _rates(highest: Mapping[str, float], warm: float | None, labels: Mapping[str, str], point: Point) -> End:
    """Every architecture trains up to its highest rate; the first epoch of a warm start has a rate of its own."""
    name = labels[architectures.AXIS]
    first = warm if name == architectures.WARM else None
    return End(None if point.rate > 1.01 * highest[name] else 90.0, first_rate=first)


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


def _alternating_opposite(folder: Path) -> Any:
    runs, alternation = swept(
        f"{PAPER}/alternating-normalization", partial(_rates, OPPOSITE_HIGHEST, None), folder
    ).facts
    return runs, [replace(agreement, deviation=1.0) for agreement in alternation]


def _of(name: str, ends: Callable[..., End]) -> Callable[[Path], Any]:
    return lambda folder: swept(f"{PAPER}/{name}", ends, folder).facts


WORLDS: dict[str, World] = {
    **{f"{PAPER}/{name}": World(_of(name, _parts), _of(name, _opposite_parts)) for name in ("table-2", "figure-17")},
    f"{PAPER}/experimental-setup": World(_of("experimental-setup", _parts), _setup_opposite),
    **{
        f"{PAPER}/{name}": World(
            _of(name, partial(_reference, REFERENCE)), _of(name, partial(_reference, OPPOSITE_REFERENCE[name]))
        )
        for name in ("figure-1", "figure-15", "figure-16")
    },
    f"{PAPER}/bn-on-top": World(
        partial(_on_top, REFERENCE, 0.2), partial(_on_top, OPPOSITE_REFERENCE["bn-on-top"], 1.9)
    ),
    **{
        f"{PAPER}/{name}": World(
            _of(name, partial(_rates, HIGHEST, WARM_RATE)), _of(name, partial(_rates, OPPOSITE_HIGHEST, None))
        )
        for name in ("table-3", "warm-start")
    },
    f"{PAPER}/alternating-normalization": World(
        _of("alternating-normalization", partial(_rates, HIGHEST, WARM_RATE)), _alternating_opposite
    ),
}
