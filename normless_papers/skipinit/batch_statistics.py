"""Appendix C: the mean and the variance that a batch norm sees, at large batches and at small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.models import dense
from normless.plots import PLOTS, new_panels
from normless.probes import probe
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, larger, over_draws, within
from normless_papers.seeded_inputs import seeded

MEAN_SQUARE = "E[(mu_c^l)^2]"
VARIANCE = "E[(sigma_c^l)^2]"
# The text's approximations are tight for b ≫ 1; from here on what they leave out is below the tolerance.
LARGE_BATCH = 64
TOLERANCE = 0.05


@dataclass(frozen=True)
class BatchStatistics:
    """Over l, in the mean over channels and blocks: μ², σ² and their sum, over draws of the network."""

    mean_square: Estimate
    variance: Estimate
    total: Estimate


def _statistics_checks(facts: Mapping[int, BatchStatistics]) -> list[Check]:
    checks = []
    for batch, one in facts.items():
        by_formula = formulas(batch)
        claims = [("both add up to l", one.total, 1.0)]
        if batch >= LARGE_BATCH:
            claims = [
                (f"μ² is {by_formula[0]:.4f} of l", one.mean_square, by_formula[0]),
                (f"σ² is {by_formula[1]:.4f} of l", one.variance, by_formula[1]),
                *claims,
            ]
        checks += [_near(f"Batch size {batch}: {claim}", measured, expected) for claim, measured, expected in claims]
    smallest, largest = min(facts), max(facts)
    falls = f"μ² falls towards l/π as the batch grows: it is larger at {smallest} than at {largest}."
    rises = f"σ² rises towards l(1 - 1/π): it is larger at {largest} than at {smallest}."
    return [
        *checks,
        larger(falls, facts[smallest].mean_square, facts[largest].mean_square),
        larger(rises, facts[largest].variance, facts[smallest].variance),
    ]


def _near(claim: str, measured: Estimate, expected: float) -> Check:
    slack = TOLERANCE * expected
    return within(f"{claim}, to {100 * TOLERANCE:g} %.", measured, expected - slack, expected + slack)


def formulas(batch: int) -> tuple[float, float]:
    """μ²/l and σ²/l of a batch of b: 1/π + (π - 1)/(πb), and what is left to 1."""
    return 1 / pi + (pi - 1) / (pi * batch), (1 - 1 / pi) * (1 - 1 / batch)


@artefact("skipinit/appendix-c-batch-statistics", basis="measurement", checks=_statistics_checks)
def batch_statistics(context: Context, *, blocks: int, width: int, batches: tuple[int, ...], draws: int) -> Evidence:
    """μ² is l(1/π + (π - 1)/(πb)) ≈ l/π and σ² about l(1 - 1/π), in the mean over channels and draws."""
    rows, facts, tables = [], {}, {}
    for batch in batches:
        with seeded(context.seed):
            drawn = [
                probe(dense(blocks, width, in_features=width), torch.randn(batch, width), ["signal"]).signal
                for _ in range(draws)
            ]
        tables[batch] = drawn[0]
        names = ["norm_mean_square", "norm_variance"]
        # A block's statistics grow with its number: divided by it, every block and draw measures one constant.
        scaled = np.stack([table[names].div(table["block"], axis=0).to_numpy(float) for table in drawn])
        per_draw = scaled.mean(1)
        facts[batch] = BatchStatistics(*map(over_draws, (per_draw[:, 0], per_draw[:, 1], per_draw.sum(1))))
        measured = (MEAN_SQUARE, facts[batch].mean_square), (VARIANCE, facts[batch].variance)
        for (quantity, one), formula in zip(measured, formulas(batch), strict=True):
            rows.append((quantity, batch, one.mean, one.deviation, formula))
    largest = max(batches)
    return Evidence(
        measured=pd.DataFrame(rows, columns=["quantity", "batch", "value", "deviation", "theory"]),
        facts=facts,
        setup={
            "network": f"dense, {blocks} blocks, width and inputs {width}, batch norm → ReLU → linear, He normal",
            "draws": f"{draws} for each batch size",
            "value": "over l, in the mean over channels, blocks and draws",
        },
        on=("quantity",),
        draw=lambda: _panels(tables, largest),
        remarks=(
            f"The formula is checked from batches of {LARGE_BATCH} on: the text derives it for b ≫ 1. Its term in "
            "1/b takes the examples after a batch norm for independent. They are not: their mean is zero and their "
            "variance one by construction, two of them have correlation -1/(b - 1), and μ² is l(1/π + 0.18/b) to "
            "first order, 0.342·l at b = 8 where the formula has 0.404·l.",
        ),
    )


def _panels(tables: dict[int, pd.DataFrame], largest: int) -> Axes:
    smallest = min(tables)
    panels = new_panels(1, 2, width=4.9, height=3.2)
    for axes, batch in zip(panels, (largest, smallest), strict=True):
        PLOTS["signal"](tables[batch], axes, title=f"Batch size {batch}")
    return panels[0]
