"""Figure 3: what L2 on γ_down costs at several strengths λ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.sweeps import Sweep
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma.comparison import BASELINE, L2, Comparison, compared
from normless_papers.gamma.roles import INKS, Effort, reduction_of, remarks_of, roles_setup
from normless_papers.plots import DIFFERENCES
from normless_papers.verdict import Check

DOWN = "gamma_down"


def _figure_3_checks(comparison: Comparison) -> list[Check]:
    return [
        comparison.better(
            f"L2 on γ_down lowers the test accuracy at λ = {strength}.",
            DOWN,
            wanted=False,
            **{"lambda": strength},
        )
        for strength in comparison.table["lambda"].unique()
    ]


@artefact("gamma/figure-3", basis="training", checks=_figure_3_checks)
def cost_of_decaying_gamma_down(
    context: Context, *, effort: Effort, model: str, strengths: Sequence[float]
) -> Evidence:
    """Test accuracy with L2 of several λ on W, and on W and γ_down: the second is lower at every λ."""
    result = context.lab.run(strengths_sweep(context, effort, model, strengths))
    comparison = compared(result, "test_accuracy")
    return Evidence(
        measured=_wide(comparison),
        facts=comparison,
        setup=roles_setup(context, effort, result),
        draw=lambda: _draw(comparison),
        remarks=remarks_of(effort, result),
        reduction=reduction_of(context, effort),
    )


def strengths_sweep(context: Context, effort: Effort, model: str, strengths: Sequence[float]) -> Sweep:
    """L2 on the weights, and on γ_down beside them, both of one λ; axes `lambda` and `l2`."""
    return Sweep(
        name="gamma/figure-3",
        base=effort.base(context) | {"model": model},
        axes={
            "lambda": {label_of(strength): {"weight_decay": float(strength)} for strength in strengths},
            L2: {BASELINE: {"decay_policy": "weights"}, DOWN: {"decay_policy": "weights+down"}},
        },
        rates=effort.rates,
        replicates=effort.replicates,
        best=effort.replicates,
        seed=context.seed,
    )


def label_of(strength: float) -> str:
    """λ as a label."""
    return f"{strength:g}"


def _wide(comparison: Comparison) -> pd.DataFrame:
    rows = []
    for strength, table in comparison.table.groupby("lambda", sort=False):
        row: dict[str, Any] = {"lambda": strength}
        for one in table.to_dict("records"):
            name = "W" if one[L2] == BASELINE else "W_gamma_down"
            row |= {name: one["mean"], f"{name}_deviation": one["deviation"], f"{name}_rate": one["rate"]}
            row |= {"n": one["n"]} | ({} if one[L2] == BASELINE else {"difference": one["difference"]})
        rows.append(row)
    return pd.DataFrame(rows)


def _draw(comparison: Comparison) -> Axes:
    table = comparison.differences("lambda", L2)
    return DIFFERENCES(
        table.assign(**{"lambda": "λ = " + table["lambda"].astype(str)}),
        y=L2,
        inks=INKS,
        title="L2 on γ_down at several λ",
        x_label="test accuracy less that with L2 on the weights alone, points",
        groups="lambda",
    )
