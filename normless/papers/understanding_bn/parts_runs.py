"""Training with parts of batch norm (appendix H): table 2 and figure 17."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import estimate, failures, final_table, setup_of
from normless.papers.published import published_as
from normless.papers.understanding_bn.parts import AXIS, INKS, by_rate, equal, in_symbols, searched, selected
from normless.papers.understanding_bn.protocol import (
    PARTS,
    SUBSETS,
    Effort,
    parts_scheme,
    parts_text,
)
from normless.papers.verdict import Estimate, check, larger
from normless.report.axes import new_panels
from normless.report.curves import accuracy_against_epoch


@artefact("understanding-bn/table-2", basis="training")
def best_rates_of_parts(context: Context, *, effort: Effort) -> Evidence:
    """Table 2: with μ and σ² the best rate is 0.1; with σ² or μ alone it is smaller, and smallest with neither."""
    result = searched(context, effort, SUBSETS)
    measured = selected(result)
    rates = dict(zip(measured[AXIS], measured["lr"], strict=True))
    usable = dict(zip(measured[AXIS], measured["highest_trained_lr"], strict=True))
    both = [parts_text(parts) for parts in SUBSETS if {"mu", "sigma2"} <= set(parts)]
    checks = [equal(f"The best rate with {in_symbols(name)} is 0.1.", rates[name], 0.1) for name in both]
    ladder = [parts_text(("mu", "sigma2")), "sigma2", "mu", ""]
    checks += [
        check(
            f"The best rate with {in_symbols(better)} is larger than with {in_symbols(worse)}.",
            None if math.isnan(rates[better]) else not rates[worse] >= rates[better],
            first=rates[better],
            second=rates[worse],
        )
        for better, worse in pairwise(ladder)
    ]
    checks += [
        equal(f"With {in_symbols(name)} the highest rate that trains is the best.", rates[name], usable[name])
        for name in rates
    ]
    return Evidence(
        measured,
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        on=(AXIS,),
        draw=lambda: by_rate(result),
        remarks=(
            "`epochs` are those of the last training where epochs are doubled until the loss plateaus, else the "
            "number that was trained.",
            *failures(result),
        ),
    )


@artefact("understanding-bn/figure-17", basis="training")
def curves_of_parts(context: Context, *, effort: Effort) -> Evidence:
    """Figure 17: γ and β together add about 0.6 points; without μ or σ² far more is lost."""
    printed = {_text(row["parts"]): row for row in published_as("understanding-bn/table-2").rows}
    axis: dict[str, dict[str, Any]] = {}
    for parts in SUBSETS:
        row = printed[parts_text(parts)]
        axis[parts_text(parts)] = {
            "scheme": parts_scheme(parts),
            "rate": float(row["lr"]),
            "epochs": effort.epochs(int(row["epochs"])),
        }
    result = context.lab.run(effort.sweep(context, "parts at their best rates", {AXIS: axis}))
    table = final_table(result)
    accuracy = {str(name): estimate(runs, "test_accuracy") for name, runs in table.groupby(AXIS, sort=False)}
    whole, bare = accuracy[parts_text(PARTS)], accuracy["mu, sigma2"]
    gain = _difference(whole, bare)
    checks = [larger("The whole affine part, γ and β, adds less than 1.6 points.", Estimate(1.6), gain)]
    checks += [
        larger(
            f"Without the affine part, to leave out {lost} costs more than γ and β add.",
            _difference(bare, accuracy[kept]),
            gain,
        )
        for lost, kept in (("μ", "sigma2"), ("σ²", "mu"))
    ]
    rows = [
        {
            "quantity": "gain_from_whole_affine_part_percent",
            "value": gain.mean,
            "deviation": gain.deviation,
            "n": gain.n,
        }
    ]
    rows += [
        {
            "quantity": f"test accuracy with {in_symbols(name)}",
            "value": one.mean,
            "deviation": one.deviation,
            "n": one.n,
        }
        for name, one in accuracy.items()
    ]
    return Evidence(
        pd.DataFrame(rows),
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _panels(result),
        remarks=("Rates and epochs are those of table 2 of the paper.", *failures(result)),
    )


def _text(parts: Any) -> str:
    return ", ".join(parts)


def _difference(first: Estimate, second: Estimate) -> Estimate:
    """Of two means over the same number of runs."""
    return Estimate(first.mean - second.mean, math.hypot(first.deviation, second.deviation), min(first.n, second.n))


def _panels(result: SweepResult) -> Axes:
    """The affine part at the left, μ and σ² without it at the right, as the paper has them."""
    epochs = result.epochs.assign(**{AXIS: result.epochs[AXIS].map(in_symbols)})
    sides = (SUBSETS[:4], SUBSETS[3:])
    axes = new_panels(1, 2)
    for panel, subsets, title in zip(
        axes, sides, ("γ and β beside μ and σ²", "μ and σ² without γ and β"), strict=True
    ):
        names = [in_symbols(parts_text(parts)) for parts in subsets]
        accuracy_against_epoch(epochs[epochs[AXIS].isin(names)], panel, series=AXIS, inks=INKS, title=title)
    return axes[0]
