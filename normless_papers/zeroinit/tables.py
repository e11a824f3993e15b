"""ZeroInit, tables 1 to 5: its parts, networks to depth 1000, and ResNet-50 on ImageNet."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes

from normless_lab.plots import inks_of, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.claims import Check, Estimate, at_scale, combined, larger
from normless_papers.experiments.comparison import Comparison
from normless_papers.experiments.de_smith import (
    ACCURACY,
    BATCH_SIZE,
    LOSS,
    RESNET_V1,
    RESNET_V2,
    ImageNetComparison,
    imagenet_table,
    over_batch_sizes,
    scheme_of,
    table_over_depths,
    wide_resnet_text,
)
from normless_papers.experiments.effort import Effort, Training
from normless_papers.experiments.runs import Runs
from normless_papers.plots import OPTIMA_BY_NAME

ABLATIONS = ("without_batch_norm", "biases", "dropout", "scalar_multiplier", "biases_and_dropout", "zeroinit")
# The table has no row for batch norm, which is the control.
RUN = ("batch_norm", *ABLATIONS)
MULTIPLIER = "scalar_multiplier"


def _table_1(runs: Runs) -> list[Check]:
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


def _of_every_part(context: Context, *, width: int, effort: Effort) -> Training:
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


DEPTHS = (16, 100, 1000)
METHODS = ("batch_norm", "zeroinit")
PARTS = ("zeroinit_without_l2", "scalar_multiplier")
_TITLE = "Test accuracy of d-2 Wide-ResNets"


def _trains(facts: Comparison, method: str, depth: int, against: int | None = None) -> Check:
    return facts.trains(f"{method} can be trained {facts.at(depth)}.", method, depth, against=against)


def _table_2(facts: Comparison) -> list[Check]:
    deep = DEPTHS[1:]
    high = [
        facts.exceeds(f"{method} exceeds 94 % {facts.at(depth)}.", (method, depth), 94.0)
        for method in METHODS
        for depth in deep
    ]
    near = facts.above("ZeroInit is less than 1 point below batch norm", "zeroinit", "batch_norm", DEPTHS, by=-1.0)
    return [
        *(_trains(facts, "batch_norm", depth, facts.sizes[0]) for depth in deep),
        *(_trains(facts, "zeroinit", depth) for depth in DEPTHS),
        *facts.above("Batch norm is above ZeroInit", "batch_norm", "zeroinit", DEPTHS),
        *map(facts.weakly_dependent, METHODS),
        *map(facts.as_printed, (*high, *near)),
    ]


def _table_3(facts: Comparison) -> list[Check]:
    claim = "At depth 1000 ZeroInit loses more than 1 point without L2 regularization."
    costs = facts.exceeds(claim, ("zeroinit", 1000), ("zeroinit_without_l2", 1000), by=1.0)
    claim = "The multiplier alone comes within 0.5 points of ZeroInit"
    alone = facts.above(claim, "scalar_multiplier", "zeroinit", DEPTHS, by=-0.5)
    return [
        *(_trains(facts, method, depth) for method in PARTS for depth in DEPTHS),
        facts.weakly_dependent("zeroinit_without_l2"),
        *map(facts.as_printed, (costs, *alone)),
    ]


table_over_depths("zeroinit/table-2", _table_2, METHODS, _TITLE)
table_over_depths("zeroinit/table-3", _table_3, (*METHODS, *PARTS), _TITLE)

SHARED = {"batch_norm": "batch_norm", "fixup": "fixup"}
V2 = SHARED | {"zeroinit_without_dropout": "zeroinit(dropout=0)", "zeroinit": "zeroinit(dropout=0.2)"}
V1 = SHARED | {"zeroinit": "zeroinit(dropout=0.2)", "zeroinit_scalar_bias": "zeroinit_v1(dropout=0.2)"}


def _table_4(facts: ImageNetComparison) -> list[Check]:
    unnormalized = ("fixup", "zeroinit")
    return [
        *(check for method in unnormalized for check in facts.better_by("batch_norm", method, facts.large)),
        *(check for method in unnormalized for check in facts.better_by("batch_norm", method, facts.large, 1.0)),
        *(check for method in unnormalized for check in facts.within_points(method, "batch_norm", facts.small, 1.0)),
        *facts.differ_by_less("zeroinit_without_dropout", "fixup", facts.small, 0.5),
        *facts.flat("batch_norm", 1.0),
    ]


imagenet_table("zeroinit/table-4", _table_4, V2, RESNET_V2, "ResNet-50-V2")
imagenet_table(
    "zeroinit/table-5",
    lambda facts: facts.without_identity("zeroinit", "zeroinit_scalar_bias"),
    V1,
    RESNET_V1,
    "ResNet-50-V1",
)
