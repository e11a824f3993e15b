"""The paper's reference runs: figure 1, and batch norm only at the top (section 3.1, appendix G)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import chosen, estimate, failures, final_table, setup_of, summary
from normless.papers.trained import runs_train
from normless.papers.understanding_bn.gradient_scale import gradient_scales
from normless.papers.understanding_bn.protocol import SCHEMES, Effort
from normless.papers.verdict import Estimate, check, larger
from normless.report.curves import accuracy_against_epoch
from normless.report.palette import Ink
from normless.report.probes.series import series_ink

AXIS = "configuration"
NONE = "no norm, 0.0001"
LOW = "batch norm, 0.0001"
MIDDLE = "batch norm, 0.003"
HIGH = "batch norm, 0.1"
TOP = "batch norm on top, 0.03"

# Of each run its network, initial learning rate and the epochs of the paper.
CONFIGURATIONS: Mapping[str, tuple[str, float, int]] = {
    NONE: ("none", 1e-4, 2400),
    LOW: ("batch norm", 1e-4, 2400),
    MIDDLE: ("batch norm", 3e-3, 1320),
    HIGH: ("batch norm", 1e-1, 165),
    TOP: ("batch norm on top", 3e-2, 330),
}
# A test accuracy within so many points of another is no better.
_NO_BETTER = 1.0


def reference_runs(context: Context, effort: Effort, names: Sequence[str]) -> SweepResult:
    """Carry out some of the paper's reference runs."""
    axis: dict[str, dict[str, Any]] = {}
    for name in names:
        scheme, rate, epochs = CONFIGURATIONS[name]
        axis[name] = {"scheme": SCHEMES[scheme], "rate": rate, "epochs": effort.epochs(epochs)}
    return context.lab.run(effort.sweep(context, "reference runs", {AXIS: axis}))


def _curves(result: SweepResult, title: str, columns: Sequence[str]) -> Axes:
    inks: dict[str, Ink] = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return accuracy_against_epoch(result.epochs, series=AXIS, inks=inks, title=title, columns=columns)


def _accuracies(table: pd.DataFrame, column: str = "test_accuracy") -> dict[str, Estimate]:
    return {str(name): estimate(runs, column) for name, runs in table.groupby(AXIS, sort=False)}


@artefact("understanding-bn/figure-1", basis="training")
def learning_rates(context: Context, *, effort: Effort) -> Evidence:
    """Figure 1: at the small rate that trains without batch norm, batch norm is no better; its large rates are."""
    result = reference_runs(context, effort, (NONE, LOW, MIDDLE, HIGH))
    table = final_table(result)
    accuracy, gap = _accuracies(table), _accuracies(table, "gap")
    checks = [
        larger(
            "With learning rate 0.0001 the batch-normalized network's test accuracy is at most "
            f"{_NO_BETTER:g} point above that of the unnormalized one.",
            accuracy[NONE],
            accuracy[LOW],
            by=-_NO_BETTER,
        ),
        larger("With batch norm 0.1 reaches a higher test accuracy than 0.003.", accuracy[HIGH], accuracy[MIDDLE]),
        larger("With batch norm 0.003 reaches a higher test accuracy than 0.0001.", accuracy[MIDDLE], accuracy[LOW]),
        larger(
            "With batch norm the gap of training and test accuracy is larger at 0.003 than at 0.1.",
            gap[MIDDLE],
            gap[HIGH],
        ),
        larger(
            "With batch norm the gap of training and test accuracy is larger at 0.0001 than at 0.003.",
            gap[LOW],
            gap[MIDDLE],
        ),
    ]
    return Evidence(
        summary(table, (AXIS, "rate", "epochs"), ("test_accuracy", "training_accuracy", "gap")),
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "Batch norm and learning rates", ("test_accuracy", "training_accuracy")),
        remarks=failures(result),
    )


@artefact("understanding-bn/bn-on-top", basis="formula")
def norm_on_top(context: Context, *, effort: Effort, batch_size: int) -> Evidence:
    """Section 3.1: one batch norm before the pooling scales gradients like all do, and gives most of the gain."""
    result = reference_runs(context, effort, (NONE, HIGH, TOP))
    table = final_table(result)
    accuracy = _accuracies(table)
    scales = gradient_scales(
        context, effort, {name: SCHEMES[name] for name in ("none", "batch norm", "batch norm on top")}, batch_size
    )
    top, full, bare = scales["batch norm on top"], scales["batch norm"], scales["none"]
    gain = accuracy[HIGH].mean - accuracy[NONE].mean
    recovered = (accuracy[TOP].mean - accuracy[NONE].mean) / gain if gain else float("nan")
    two_thirds = Estimate(
        accuracy[NONE].mean * 1 / 3 + accuracy[HIGH].mean * 2 / 3,
        (accuracy[NONE].deviation ** 2 / 9 + accuracy[HIGH].deviation ** 2 * 4 / 9) ** 0.5,
        accuracy[HIGH].n,
    )
    checks = [
        check(
            "At initialization the gradients' norm is nearer that of the fully normalized network than that of the "
            "unnormalized one (in decades).",
            abs(top - full) < abs(top - bare),
            on_top=top,
            fully_normalized=full,
            unnormalized=bare,
        ),
        runs_train("It trains at learning rate 0.03.", chosen(table, **{AXIS: TOP})),
        larger(
            "Its test accuracy is above two thirds of the way from the unnormalized to the normalized network's.",
            accuracy[TOP],
            two_thirds,
        ),
    ]
    epochs = effort.epochs(CONFIGURATIONS[TOP][2])
    quantities = {
        "lr": CONFIGURATIONS[TOP][1],
        "epochs": epochs,
        "test_accuracy": accuracy[TOP].mean,
        "test accuracy with batch norm at 0.1": accuracy[HIGH].mean,
        "test accuracy without norm at 0.0001": accuracy[NONE].mean,
        "share of the gain recovered": recovered,
        "log10 of the gradients' norm, on top": top,
        "log10 of the gradients' norm, normalized": full,
        "log10 of the gradients' norm, unnormalized": bare,
    }
    return Evidence(
        pd.DataFrame([{"quantity": name, "value": float(value)} for name, value in quantities.items()]),
        (checks[0], *qualified(checks[1:], effort.reduction)),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _curves(result, "Batch norm on top only", ("test_accuracy",)),
        remarks=failures(result),
    )


@artefact("understanding-bn/figure-15", basis="training")
def training_accuracy_on_top(context: Context, *, effort: Effort) -> Evidence:
    """Figure 15: with batch norm on top only, training accuracy ends somewhat below full batch norm's."""
    result = reference_runs(context, effort, (NONE, HIGH, TOP))
    table = final_table(result)
    training = _accuracies(table, "training_accuracy")
    checks = [
        larger("Its training accuracy ends below that of the normalized network.", training[HIGH], training[TOP]),
        larger("It ends less than 10 points below.", training[TOP], training[HIGH], by=-10.0),
    ]
    return Evidence(
        summary(table, (AXIS, "rate", "epochs"), ("training_accuracy",)),
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "Training with batch norm on top only", ("training_accuracy",)),
        remarks=("“Somewhat below” is taken as less than 10 points.", *failures(result)),
    )


@artefact("understanding-bn/figure-16", basis="training")
def test_accuracy_on_top(context: Context, *, effort: Effort) -> Evidence:
    """Figure 16: with batch norm on top only, test accuracy ends at 90.1 %."""
    result = reference_runs(context, effort, (NONE, HIGH, TOP))
    table = final_table(result)
    accuracy = _accuracies(table)
    top = accuracy[TOP]
    checks = [
        larger("Its final test accuracy is above 89.1 %, a point below the published.", top, Estimate(89.1)),
        larger("Its final test accuracy is below 91.1 %, a point above the published.", Estimate(91.1), top),
        larger("It lies above that of the unnormalized network.", top, accuracy[NONE]),
    ]
    rows = [{"quantity": "final_test_accuracy", "value": top.mean, "deviation": top.deviation, "n": top.n}]
    rows += [
        {"quantity": f"test accuracy, {name}", "value": one.mean, "deviation": one.deviation, "n": one.n}
        for name, one in accuracy.items()
        if name != TOP
    ]
    return Evidence(
        pd.DataFrame(rows),
        qualified(checks, effort.reduction),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _curves(result, "Test accuracy with batch norm on top only", ("test_accuracy",)),
        remarks=failures(result),
    )
