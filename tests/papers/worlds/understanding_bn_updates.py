"""What single updates, noise and layers of the Understanding BN paper give, as published and as the opposite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
from worlds.world import World

from normless_lab.sweeps import Laboratory
from normless_papers.artefact import Context, artefact_of
from normless_papers.published import published_as
from normless_papers.understanding_bn.initializations import Measured
from normless_papers.understanding_bn.single_updates import Divergence

PAPER = "understanding-bn"
THRESHOLD = published_as(f"{PAPER}/figure-5").rows[0]["value"]
STABLE, DIVERGING = (row["value"] for row in published_as(f"{PAPER}/maximal-learning-rate").rows)
RATES = {row["quantity"]: row["value"] for row in published_as(f"{PAPER}/figure-24").rows}
DRAWS = range(5)


def _losses(losses: dict[float, float], predicted: float) -> pd.DataFrame:
    """Along an update, and what the gradient says of its end."""
    rows = [
        {"point": point, "loss": loss, "predicted_loss": losses[0.0] + point * (predicted - losses[0.0])}
        for point, loss in losses.items()
    ]
    return pd.DataFrame(rows)


def _figure_5(_: Path) -> Divergence:
    table = _losses({0.0: 2.3, 0.05: 2.3, 0.5: 3.0, 1.0: 10 * THRESHOLD}, predicted=1.0)
    return Divergence(len(DRAWS), 20, tuple(3 for _ in DRAWS), tuple(table for _ in DRAWS))


def _figure_5_opposite(_: Path) -> Divergence:
    table = _losses({0.0: 1.0, 0.05: 0.1 * THRESHOLD, 0.5: 0.8 * THRESHOLD, 1.0: THRESHOLD}, predicted=THRESHOLD)
    return Divergence(len(DRAWS), 200, (150, 150), (table, table))


def _moments(upper: dict[float, float], lower: dict[float, float]) -> pd.DataFrame:
    rows = [
        {"point": point, "layers": layers, "abs_mean": moment, "variance": moment**2}
        for layers, moments in (("upper", upper), ("lower", lower))
        for point, moment in moments.items()
    ]
    return pd.DataFrame(rows)


def _figure_6(_: Path) -> Divergence:
    table = _moments({0.0: 1.0, 0.5: 2.0, 1.0: 1e4}, {0.0: 1.0, 0.5: 1.05, 1.0: 1.2})
    return Divergence(len(DRAWS), 20, tuple(3 for _ in DRAWS), tuple(table for _ in DRAWS))


def _figure_6_opposite(_: Path) -> Divergence:
    table = _moments({0.0: 1.0, 0.5: 2.0, 1.0: 1.0}, {0.0: 1.0, 0.5: 10.0, 1.0: 1e4})
    return Divergence(len(DRAWS), 20, (3, 3), (table, table))


def _longest(ratio: float) -> Measured:
    rows = [
        {"batch_norm": kind, "draw": draw, "minibatch": minibatch, "step": step}
        for minibatch in (1, 5)
        for draw in DRAWS
        for kind, step in ((False, 1e-3), (True, 1e-3 * ratio * (1 + 0.01 * draw)))
    ]
    return Measured(pd.DataFrame(rows))


def _stable(with_norm: float, without: float, *, first: bool, ten: bool) -> Measured:
    """Without reduction: as the paper's own set-up would have it."""
    rows = [
        {"batch_norm": kind, "draw": draw, "largest": largest, "first_stable": first, "ten_diverged": ten}
        | {"smallest_diverging": 2 * largest}
        for kind, largest in ((True, with_norm), (False, without))
        for draw in DRAWS
    ]
    return Measured(pd.DataFrame(rows))


def _noise(batch_exponent: float, rate_exponent: float, excess: float, bias: float) -> Any:
    """Noise c·α^r / |B|^b where the equation has r = 2 and b = 1."""
    rows = [
        {
            "batch_size": size,
            "learning_rate": rate,
            "noise": excess * rate**rate_exponent / size**batch_exponent,
            "predicted_noise": rate**2 / size,
            "bias": bias,
        }
        for size, rate in ((1, 0.1), (2, 0.1), (3, 0.1), (2, 0.2))
    ]
    exact = pd.DataFrame(rows)
    drawn = exact.assign(standard_error=0.01 * exact["predicted_noise"], predicted_bias=1e-3)
    return exact, drawn, 110, 500


def _measured(name: str, folder: Path) -> Any:
    """Facts of an artefact that compares our layers with the paper's formulas."""
    found = artefact_of(f"{PAPER}/{name}")
    return found.function(Context("smoke", cast(Laboratory, None), folder), **found.settings["smoke"]).facts


def _parts_of_the_layer(deviation: float, folder: Path) -> Any:
    return [replace(agreement, deviation=deviation) for agreement in _measured("equation-1", folder)]


def _class_sums(deviation: float) -> Measured:
    rows = [
        {"batch_norm": kind, "draw": draw, "deviation": deviation, "parameters": 110}
        for kind in (False, True)
        for draw in DRAWS
    ]
    return Measured(pd.DataFrame(rows))


WORLDS: dict[str, World] = {
    f"{PAPER}/figure-5": World(_figure_5, _figure_5_opposite),
    f"{PAPER}/figure-6": World(_figure_6, _figure_6_opposite),
    f"{PAPER}/figure-24": World(
        lambda _: _longest(RATES["lr_batch_norm"] / RATES["lr_unnormalized"]), lambda _: _longest(1.0)
    ),
    f"{PAPER}/maximal-learning-rate": World(
        lambda _: _stable(STABLE, RATES["lr_unnormalized"], first=True, ten=DIVERGING == 10),
        lambda _: _stable(RATES["lr_unnormalized"], STABLE, first=False, ten=False),
    ),
    f"{PAPER}/equation-2": World(lambda _: _noise(1, 2, 1.0, 0.0), lambda _: _noise(0.5, 1, 3.0, 1.0)),
    f"{PAPER}/equation-1": World(
        lambda folder: _parts_of_the_layer(0.0, folder), lambda folder: _parts_of_the_layer(1.0, folder)
    ),
    f"{PAPER}/class-wise-mask": World(lambda _: _class_sums(0.0), lambda _: _class_sums(1.0)),
}
