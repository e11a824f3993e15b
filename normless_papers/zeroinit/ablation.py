"""What each part of ZeroInit is good for: a 16-4 Wide-ResNet without normalization at batch size 64 (table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, new_panels
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.networks import wide_resnet_text
from normless_papers.optima import Runs, Selection, carried_out
from normless_papers.plots import OPTIMA_BY_NAME
from normless_papers.protocol import BATCH_SIZE, METHODS, Effort, batch_sweeps
from normless_papers.verdict import Check, Estimate, at_scale, larger

ABLATIONS = ("without_batch_norm", "biases", "dropout", "scalar_multiplier", "biases_and_dropout", "zeroinit")
# Batch norm is no row of the table: it says what training reaches here.
RUN = ("batch_norm", *ABLATIONS)
MULTIPLIER = "scalar_multiplier"
# The printed losses of about 0.2 at 94 % can only be those with the L2 term, which the paper does not say.
LOSS = "training_loss_with_l2"


@dataclass(frozen=True)
class Ablation:
    """What each method reaches at its best rate; `reduction` is what is less than the paper's set-up."""

    accuracy: Mapping[str, Estimate]
    loss: Mapping[str, Estimate]
    reduction: str


def _table_1(facts: Ablation) -> list[Check]:
    accuracy, loss = facts.accuracy, facts.loss
    printed = [
        larger(
            "The scalar multiplier alone is more than 1 point above no normalization.",
            accuracy[MULTIPLIER],
            accuracy["without_batch_norm"],
            by=1.0,
        ),
        larger("The scalar multiplier alone reaches 93.5 % (printed: 94.0 %).", accuracy[MULTIPLIER], Estimate(93.5)),
        # Regularization pays in trainings as long as the paper's.
        larger(
            "Biases and dropout with the multiplier are better than the multiplier alone.",
            accuracy["zeroinit"],
            accuracy[MULTIPLIER],
        ),
    ]
    return [
        larger(
            "The scalar multiplier alone is above no normalization.",
            accuracy[MULTIPLIER],
            accuracy["without_batch_norm"],
        ),
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
    sweeps = batch_sweeps(
        context,
        "zeroinit-ablation",
        {method: METHODS[method] for method in RUN},
        (BATCH_SIZE,),
        model=wide_resnet_text(16, width),
        effort=effort,
        ghost=None,
    )
    runs = carried_out(
        context.lab,
        sweeps,
        ("test_accuracy", LOSS),
        whole=effort.whole and context.keeps(effort.data),
        control={"method": "batch_norm"},
    )
    accuracies, losses = runs.accuracies, runs.selected(LOSS)

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        inks = inks_of({method: str(METHODS[method]["scheme"]) for method in RUN})
        OPTIMA_BY_NAME(accuracies.table, upper, y="method", inks=inks, title="Test accuracy", x_label="percent")
        return OPTIMA_BY_NAME(
            losses.table, lower, y="method", inks=inks, title="Training loss with the L2 term", x_label="nats"
        )

    return Evidence(
        measured=_measured(accuracies, losses),
        facts=Ablation(
            {method: accuracies.estimate(method=method) for method in ABLATIONS},
            {method: losses.estimate(method=method) for method in ABLATIONS},
            runs.reduction,
        ),
        setup=runs.setup,
        on=("method",),
        draw=draw,
        remarks=(
            "Training losses include the L2 term: those printed are too large for the cross entropy alone.",
            *runs.remarks(accuracies),
            *_second(runs, losses),
        ),
        reduction=runs.reduction,
    )


def _measured(accuracies: Selection, losses: Selection) -> pd.DataFrame:
    """Both optima of every method, side by side as they are printed."""
    left = accuracies.published_columns("test_accuracy").drop(columns="batch_size")
    right = losses.published_columns("training_loss", "training_loss_std")
    kept = right[["method", "training_loss", "training_loss_std", "lr_log2"]]
    return left.merge(kept.rename(columns={"lr_log2": "training_loss_lr_log2"}), on="method", sort=False)


def _second(runs: Runs, losses: Selection) -> tuple[str, ...]:
    """What is to be said of the losses and has not been said of the accuracies."""
    return tuple(remark for remark in runs.remarks(losses) if "training loss" in remark)
