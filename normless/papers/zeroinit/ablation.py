"""What each part of ZeroInit is good for: a 16-4 Wide-ResNet without normalization at batch size 64 (table 1)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.networks import wide_resnet_text
from normless.papers.protocol import BATCH_SIZE, METHODS, Effort, batch_sweeps
from normless.papers.selected import Runs, Selection, carried_out
from normless.papers.verdict import Check, Estimate, larger
from normless.report.axes import new_panels
from normless.report.optima_by_name import optima_by_name
from normless.report.sweeps import inks_of

ABLATIONS = ("without_batch_norm", "biases", "dropout", "scalar_multiplier", "biases_and_dropout", "zeroinit")
# The printed losses of about 0.2 at 94 % can only be those with the L2 term, which the paper does not say.
LOSS = "training_loss_with_l2"


@artefact("zeroinit/table-1", basis="training")
def ablation(context: Context, *, width: int, effort: Effort) -> Evidence:
    """Optimal test accuracy and training loss of all combinations of multiplier, biases and dropout in the table."""
    sweeps = batch_sweeps(
        context,
        "zeroinit-ablation",
        {method: METHODS[method] for method in ABLATIONS},
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
        control={"method": "zeroinit"},
    )
    accuracies, losses = runs.accuracies, runs.selected(LOSS)

    def draw() -> Axes:
        upper, lower = new_panels(1, 2, width=4.9, height=3.2)
        inks = inks_of({method: str(METHODS[method]["scheme"]) for method in ABLATIONS})
        optima_by_name(accuracies.table, upper, series="method", inks=inks, title="Test accuracy", across="percent")
        return optima_by_name(
            losses.table, lower, series="method", inks=inks, title="Training loss with the L2 term", across="nats"
        )

    return Evidence(
        measured=_measured(accuracies, losses),
        checks=qualified(_checks(accuracies, losses), runs.reduction),
        setup=runs.setup,
        on=("method",),
        draw=draw,
        remarks=(
            "Training losses include the L2 term: those printed are too large for the cross entropy alone.",
            *runs.remarks(accuracies),
            *_second(runs, losses),
        ),
    )


def _measured(accuracies: Selection, losses: Selection) -> pd.DataFrame:
    """Both optima of every method, side by side as they are printed."""
    left = accuracies.published_columns("test_accuracy").drop(columns="batch_size")
    right = losses.published_columns("training_loss", "training_loss_std")
    kept = right[["method", "training_loss", "training_loss_std", "lr_log2"]]
    return left.merge(kept.rename(columns={"lr_log2": "training_loss_lr_log2"}), on="method", sort=False)


def _checks(accuracies: Selection, losses: Selection) -> tuple[Check, ...]:
    accuracy = {method: accuracies.estimate(method=method) for method in ABLATIONS}
    loss = {method: losses.estimate(method=method) for method in ABLATIONS}
    others = [method for method in ABLATIONS if method != "scalar_multiplier"]
    lowest = [
        larger(
            f"The training loss of {method} is above that of the scalar multiplier alone.",
            loss[method],
            loss["scalar_multiplier"],
        )
        for method in others
    ]
    return (
        larger(
            "The scalar multiplier alone is more than 1 point above no normalization.",
            accuracy["scalar_multiplier"],
            accuracy["without_batch_norm"],
            by=1.0,
        ),
        larger("The scalar multiplier alone reaches 93.5 %.", accuracy["scalar_multiplier"], Estimate(93.5)),
        larger(
            "Biases and dropout with the multiplier are better than the multiplier alone.",
            accuracy["zeroinit"],
            accuracy["scalar_multiplier"],
        ),
        larger("Biases and dropout raise the training loss.", loss["zeroinit"], loss["scalar_multiplier"]),
        *lowest[:-1],
    )


def _second(runs: Runs, losses: Selection) -> tuple[str, ...]:
    """What is to be said of the losses and has not been said of the accuracies."""
    return tuple(remark for remark in runs.remarks(losses) if "training loss" in remark)
