"""The common set-up, and the search for a learning rate and a number of epochs (section 1.2, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.optim import step
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, at_scale, check, larger
from normless_papers.effort import Effort
from normless_papers.runs import chosen
from normless_papers.trained import runs_do_not_train
from normless_papers.understanding_bn.parts import AXIS, PartsRuns, by_rate, searched, selected
from normless_papers.understanding_bn.protocol import PARTS, parts_text
from normless_papers.understanding_bn.rates import best_rate, highest_decade, is_rate

WHOLE, NONE = parts_text(PARTS), ""
# A thousandth of a training is short against any of its parts.
_SHARES = 1000


@dataclass(frozen=True)
class Searched:
    """What the search gave, and the schedule that it trained by.

    Attributes:
        runs: with batch norm and without.
        drops: after which shares of a training the schedule lowers the rate.
        factors: by how many times, of each drop.
    """

    runs: PartsRuns
    drops: tuple[float, ...]
    factors: tuple[float, ...]


def _experimental_setup(outcome: Searched) -> list[Check]:
    runs, control = outcome.runs, outcome.runs.control
    with_norm, without = (highest_decade(runs.of(parts), control) for parts in (WHOLE, NONE))
    largest = runs.runs.table["rate"].max()
    return [
        check(
            "The schedule divides the rate by 10 after 50 % and 75 % of the training, and nowhere else.",
            outcome.drops == (0.5, 0.75) and outcome.factors == (10.0, 10.0),
            drops=len(outcome.drops),
            first=min(outcome.drops, default=float("nan")),
            last=max(outcome.drops, default=float("nan")),
            factor=max(outcome.factors, default=float("nan")),
        ),
        at_scale(
            is_rate("With batch norm the search selects the rate 0.1.", best_rate(runs.at_best(WHOLE)), 0.1),
            runs.runs.reduction,
        ),
        at_scale(
            is_rate("Without it the largest usable rate is 0.0001.", runs.highest_trained(NONE), 1e-4),
            runs.runs.reduction,
        ),
        larger("The largest usable rate is larger with batch norm (log₁₀ of the rates).", with_norm, without),
        runs_do_not_train(
            f"Without batch norm training at the largest rate, {largest:g}, fails.",
            chosen(runs.of(NONE), rate=largest),
            runs.of(WHOLE),
        ),
    ]


@artefact("understanding-bn/experimental-setup", basis="training", checks=_experimental_setup)
def experimental_setup(context: Context, *, effort: Effort) -> Evidence:
    """Appendix B: the search returns a rate and a number of epochs for each network, 0.1 with batch norm."""
    runs = searched(context, effort, (PARTS, ()))
    best = {row[AXIS]: row for row in selected(runs).to_dict("records")}
    places = [place for place in range(1, _SHARES) if step(place / _SHARES) < step((place - 1) / _SHARES)]
    drops = tuple(place / _SHARES for place in places)
    factors = tuple(round(step((place - 1) / _SHARES) / step(place / _SHARES), 12) for place in places)
    values: dict[str, Any] = {
        "lr_grid": ", ".join(f"{rate:g}" for rate in sorted(effort.rates.rates, reverse=True)),
        "momentum": effort.settings["momentum"],
        "weight_decay": effort.settings["weight_decay"],
        "batch_size": effort.batch_size,
        "initial_epochs": effort.epochs,
        "drops_at": ", ".join(f"{share:g}" for share in drops),
        "drop_factor": max(factors),
        "selected rate with batch norm": best[WHOLE]["lr"],
        "selected epochs with batch norm": best[WHOLE]["epochs"],
        "selected rate without": best[NONE]["lr"],
        "selected epochs without": best[NONE]["epochs"],
        "largest usable rate with batch norm": best[WHOLE]["highest_trained_lr"],
        "largest usable rate without": best[NONE]["highest_trained_lr"],
        "configurations searched": len(runs.runs.summary((AXIS, "rate"), ("test_accuracy",))),
    }
    return Evidence(
        pd.DataFrame([{"quantity": name, "value": value} for name, value in values.items()]),
        facts=Searched(runs, drops, factors),
        setup=runs.runs.setup,
        on=("quantity",),
        draw=lambda: by_rate(runs),
        remarks=(
            "The paper's initial 300 epochs contradict the numbers it reports, which are 165 doubled: the search "
            "starts at 165.",
            *runs.runs.failures,
        ),
        reduction=runs.runs.reduction,
    )
