"""ZeroInit, tables 1 to 5: its parts, networks to depth 1000, and ResNet-50 on ImageNet."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes

from normless_lab.plots import inks_of, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.claims import Claim, Estimate, at_scale, combined, larger
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
MULTIPLIER = "scalar_multiplier"


def _table_1(runs: Runs) -> list[Claim]:
    accuracy, loss = ({name: runs.optimum(metric, method=name) for name in ABLATIONS} for metric in (ACCURACY, LOSS))
    pair = accuracy[MULTIPLIER], accuracy["without_batch_norm"]
    halfway = combined([(0.5, accuracy["zeroinit"]), (0.5, accuracy["without_batch_norm"])])
    halfway = replace(halfway, name="half of ZeroInit's gain")
    # Regularization helps only in trainings as long as the paper's.
    helps = "Biases and dropout with the multiplier are better than the multiplier alone."
    printed = [
        larger("The scalar multiplier alone is more than 1 point above no normalization.", *pair, by=1.0),
        larger("The scalar multiplier alone reaches 93.5 % (printed: 94.0 %).", accuracy[MULTIPLIER], Estimate(93.5)),
    ]
    above = "is above that of the scalar multiplier alone."
    return [
        larger("The scalar multiplier alone is above no normalization.", *pair),
        larger(
            "The scalar multiplier alone does most of what ZeroInit does: more than half of its gain over no "
            "normalization.",
            pair[0],
            halfway,
        ),
        *(
            larger(f"The training loss of {method} {above}", loss[method], loss[MULTIPLIER])
            for method in ABLATIONS
            if method != MULTIPLIER
        ),
        at_scale(larger(helps, accuracy["zeroinit"], accuracy[MULTIPLIER]), runs.reduction, of="shape"),
        *(at_scale(check, runs.reduction) for check in printed),
    ]


def _of_every_part(context: Context, *, width: int, effort: Effort) -> TrainingSweeps:
    model = wide_resnet_text(16, width)
    return over_batch_sizes(context, "zeroinit-ablation", RUN, (BATCH_SIZE,), effort, model=model, ghost=None)


@artefact("zeroinit/table-1", basis="training", checks=_table_1, trains=_of_every_part)
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
