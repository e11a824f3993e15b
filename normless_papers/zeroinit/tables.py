"""ZeroInit, tables 1 to 5: its parts, networks to depth 1000, and ResNet-50 on ImageNet."""

from __future__ import annotations

from matplotlib.axes import Axes

from normless_lab.plots import inks_of, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.experiments.de_smith import (
    ACCURACY,
    BATCH_SIZE,
    LOSS,
    over_batch_sizes,
    register,
    scheme_of,
    wide_resnet_text,
)
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.plots import OPTIMA_BY_NAME

ABLATIONS = ("without_batch_norm", "biases", "dropout", "scalar_multiplier", "biases_and_dropout", "zeroinit")
# The table has no row for batch norm, which is the control.
RUN = ("batch_norm", *ABLATIONS)


def _of_every_part(context: Context, *, width: int, effort: Effort) -> TrainingSweeps:
    model = wide_resnet_text(16, width)
    return over_batch_sizes(context, "zeroinit-ablation", RUN, (BATCH_SIZE,), effort, model=model, ghost=None)


@artefact("zeroinit/table-1", basis="training", trains=_of_every_part)
def ablation(context: Context, runs: Runs, *, width: Network[int], effort: Effort) -> Evidence:
    def draw() -> Axes:
        panels, inks = new_panels(1, 2, width=4.9, height=3.2), inks_of({method: scheme_of(method) for method in RUN})
        labels = {ACCURACY: ("Test accuracy", "percent"), LOSS: ("Training loss with the L2 term", "nats")}
        for axes, (metric, (title, label)) in zip(panels, labels.items(), strict=True):
            bounds = (0, 100 if metric == ACCURACY else None)
            OPTIMA_BY_NAME(
                runs.optima(metric), axes, y="method", inks=inks, title=title, x_label=label, bounds=bounds
            )
        return panels[0]

    # The table prints both optima of a method in one row.
    accuracies = runs.printed(ACCURACY, ACCURACY).drop(columns="batch_size")
    losses = runs.printed(LOSS, "training_loss", "training_loss_std")
    losses = losses.rename(columns={"lr_log2": "training_loss_lr_log2"})
    columns = ["method", "training_loss", "training_loss_std", "training_loss_lr_log2"]
    return runs.evidence(
        accuracies.merge(losses[columns], on="method", sort=False),
        draw,
        on=("method",),
        remarks=runs.remarks(ACCURACY, LOSS),
    )


register("zeroinit")
