"""The common set-up, and the search for a learning rate and a number of epochs (section 1.2, appendix B)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from normless.optim.schedules import step
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import failures, final_table, setup_of, summary
from normless.papers.understanding_bn.parts import AXIS, by_rate, equal, searched, selected
from normless.papers.understanding_bn.protocol import (
    FIRST_EPOCHS,
    PARTS,
    PROTOCOL,
    Effort,
    parts_text,
)
from normless.papers.verdict import check


@artefact("understanding-bn/experimental-setup", basis="formula")
def experimental_setup(context: Context, *, effort: Effort) -> Evidence:
    """Appendix B: the search returns a rate and a number of epochs for each network, 0.1 with batch norm."""
    result = searched(context, effort, (PARTS, ()))
    found = {row[AXIS]: row for row in selected(result).to_dict("records")}
    with_norm, without = found[parts_text(PARTS)], found[""]
    drops = [share / 1000 for share in range(1, 1000) if step(share / 1000) < step((share - 1) / 1000)]
    factors = {round(step(before) / step(after), 12) for before, after in ((0.4, 0.6), (0.6, 0.8))}
    checks = [
        check(
            "The schedule divides the rate by 10 at 50 % and at 75 % of the training, and nowhere else.",
            drops == [0.5, 0.75] and factors == {10.0},
            drops=len(drops),
            factor=max(factors),
        ),
        *qualified(
            [
                equal("With batch norm the search selects the rate 0.1.", float(with_norm["lr"]), 0.1),
                equal("Without it the largest usable rate is 0.0001.", float(without["highest_trained_lr"]), 1e-4),
                check(
                    "The largest usable rate with batch norm is at least 10 times that without.",
                    bool(with_norm["highest_trained_lr"] >= 10 * without["highest_trained_lr"]),
                    with_norm=with_norm["highest_trained_lr"],
                    without=without["highest_trained_lr"],
                ),
            ],
            effort.reduction,
        ),
    ]
    table = summary(final_table(result), (AXIS, "rate"), ("test_accuracy",))
    values: dict[str, Any] = {
        "lr_grid": ", ".join(f"{rate:g}" for rate in sorted(effort.rates, reverse=True)),
        "momentum": PROTOCOL["momentum"],
        "weight_decay": PROTOCOL["weight_decay"],
        "batch_size": effort.batch_size,
        "initial_epochs": effort.epochs(FIRST_EPOCHS),
        "drops_at": ", ".join(f"{share:g}" for share in drops),
        "drop_factor": max(factors),
        "selected rate with batch norm": with_norm["lr"],
        "selected epochs with batch norm": with_norm["epochs"],
        "selected rate without": without["lr"],
        "selected epochs without": without["epochs"],
        "largest usable rate without": without["highest_trained_lr"],
        "configurations searched": len(table),
    }
    return Evidence(
        pd.DataFrame([{"quantity": name, "value": value} for name, value in values.items()]),
        tuple(checks),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: by_rate(result),
        remarks=(
            "The paper's initial 300 epochs contradict the numbers it reports, which are 165 doubled: the search "
            "starts at 165.",
            *failures(result),
        ),
    )
