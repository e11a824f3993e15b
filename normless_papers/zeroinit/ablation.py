"""The parts of ZeroInit: a 16-4 Wide-ResNet without normalization at batch size 64 (table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, larger
from normless_papers.de_smith import ACCURACY, BATCH_SIZE, LOSS, over_batch_sizes, scheme_of, wide_resnet_text
from normless_papers.effort import Effort
from normless_papers.plots import OPTIMA_BY_NAME
from normless_papers.runs import Runs

ABLATIONS = ("without_batch_norm", "biases", "dropout", "scalar_multiplier", "biases_and_dropout", "zeroinit")
# Batch norm is no row of the table: it is the control.
RUN = ("batch_norm", *ABLATIONS)
MULTIPLIER = "scalar_multiplier"


@dataclass(frozen=True)
class Ablation:
    """What each method reaches at its best rate; `reduction` is what is less than the paper's set-up."""

    accuracy: Mapping[str, Estimate]
    loss: Mapping[str, Estimate]
    reduction: str


def _table_1(facts: Ablation) -> list[Check]:
    accuracy, loss = facts.accuracy, facts.loss
    pair = accuracy[MULTIPLIER], accuracy["without_batch_norm"]
    printed = [
        larger("The scalar multiplier alone is more than 1 point above no normalization.", *pair, by=1.0),
        larger("The scalar multiplier alone reaches 93.5 % (printed: 94.0 %).", accuracy[MULTIPLIER], Estimate(93.5)),
        # Regularization pays in trainings as long as the paper's.
        larger(
            "Biases and dropout with the multiplier are better than the multiplier alone.",
            accuracy["zeroinit"],
            accuracy[MULTIPLIER],
        ),
    ]
    return [
        larger("The scalar multiplier alone is above no normalization.", *pair),
        *(
            larger(
                f"The training loss of {method} is above that of the scalar multiplier alone.",
                loss[method],
                loss[MULTIPLIER],
            )
            for method in ABLATIONS
            if method != MULTIPLIER
        ),
        *(at_scale(one, facts.reduction) for one in printed),
    ]


@artefact("zeroinit/table-1", basis="training", checks=_table_1)
def ablation(context: Context, *, width: int, effort: Effort) -> Evidence:
    """Optimal test accuracy and training loss of all combinations of multiplier, biases and dropout in the table."""
    model = wide_resnet_text(16, width)
    runs = over_batch_sizes(context, "zeroinit-ablation", RUN, (BATCH_SIZE,), effort, model=model, ghost=None).runs

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        inks = inks_of({method: scheme_of(method) for method in RUN})
        accuracies, losses = (runs.optima(metric) for metric in (ACCURACY, LOSS))
        OPTIMA_BY_NAME(accuracies, upper, y="method", inks=inks, title="Test accuracy", x_label="percent")
        return OPTIMA_BY_NAME(
            losses, lower, y="method", inks=inks, title="Training loss with the L2 term", x_label="nats"
        )

    return runs.evidence(
        _measured(runs),
        draw,
        facts=Ablation(
            {method: runs.optimum(ACCURACY, method=method) for method in ABLATIONS},
            {method: runs.optimum(LOSS, method=method) for method in ABLATIONS},
            runs.reduction,
        ),
        on=("method",),
        remarks=(
            "Training losses include the L2 term: those printed are too large for the cross entropy alone.",
            *runs.remarks(ACCURACY, LOSS),
        ),
    )


def _measured(runs: Runs) -> pd.DataFrame:
    """Both optima of every method, side by side as they are printed."""
    left = runs.printed(ACCURACY, ACCURACY).drop(columns="batch_size")
    right = runs.printed(LOSS, "training_loss", "training_loss_std")
    right = right[["method", "training_loss", "training_loss_std", "lr_log2"]]
    return left.merge(right.rename(columns={"lr_log2": "training_loss_lr_log2"}), on="method", sort=False)
