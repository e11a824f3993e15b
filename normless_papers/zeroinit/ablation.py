"""The parts of ZeroInit: a 16-4 Wide-ResNet without normalization at batch size 64 (table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes

from normless.plots import inks_of, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, larger
from normless_papers.de_smith import ACCURACY, BATCH_SIZE, LOSS, over_batch_sizes, scheme_of, wide_resnet_text
from normless_papers.effort import Effort
from normless_papers.plots import OPTIMA_BY_NAME

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
    # Regularization helps in trainings as long as the paper's.
    helps = "Biases and dropout with the multiplier are better than the multiplier alone."
    printed = [
        larger("The scalar multiplier alone is more than 1 point above no normalization.", *pair, by=1.0),
        larger("The scalar multiplier alone reaches 93.5 % (printed: 94.0 %).", accuracy[MULTIPLIER], Estimate(93.5)),
        larger(helps, accuracy["zeroinit"], accuracy[MULTIPLIER]),
    ]
    above = "is above that of the scalar multiplier alone."
    return [
        larger("The scalar multiplier alone is above no normalization.", *pair),
        *(
            larger(f"The training loss of {method} {above}", loss[method], loss[MULTIPLIER])
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
        panels, inks = new_panels(1, 2, width=4.9, height=3.2), inks_of({method: scheme_of(method) for method in RUN})
        labels = {ACCURACY: ("Test accuracy", "percent"), LOSS: ("Training loss with the L2 term", "nats")}
        for axes, (metric, (title, label)) in zip(panels, labels.items(), strict=True):
            OPTIMA_BY_NAME(runs.optima(metric), axes, y="method", inks=inks, title=title, x_label=label)
        return panels[0]

    # Both optima of every method, side by side as they are printed.
    accuracies = runs.printed(ACCURACY, ACCURACY).drop(columns="batch_size")
    losses = runs.printed(LOSS, "training_loss", "training_loss_std")
    losses = losses.rename(columns={"lr_log2": "training_loss_lr_log2"})
    columns = ["method", "training_loss", "training_loss_std", "training_loss_lr_log2"]
    reached = [{method: runs.optimum(metric, method=method) for method in ABLATIONS} for metric in (ACCURACY, LOSS)]
    return runs.evidence(
        accuracies.merge(losses[columns], on="method", sort=False),
        draw,
        facts=Ablation(*reached, runs.reduction),
        on=("method",),
        remarks=(
            "Training losses include the L2 term: those printed are too large for the cross entropy alone.",
            *runs.remarks(ACCURACY, LOSS),
        ),
    )
