"""The paper's reference runs: figure 1, and batch norm only at the top (section 3.1, appendix G)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import Ink, accuracy_against_epoch, series_ink
from normless.sweeps import SweepResult
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, check, combined, difference, larger, over_draws, quantity_table, within
from normless_papers.run_summary import estimates_by, failures, final_table, setup_of
from normless_papers.runs import chosen, summary
from normless_papers.trained import runs_train
from normless_papers.understanding_bn.gradient_scale import gradient_scales
from normless_papers.understanding_bn.plateau import plateaus
from normless_papers.understanding_bn.protocol import SCHEMES, Effort

AXIS = "configuration"
NONE = "no norm, low rate"
LOW = "batch norm, low rate"
MIDDLE = "batch norm, middle rate"
HIGH = "batch norm, high rate"
TOP = "batch norm on top"

# Of each run its network, and which of the effort's trainings it has.
CONFIGURATIONS: Mapping[str, tuple[str, str]] = {
    NONE: ("none", "low"),
    LOW: ("batch norm", "low"),
    MIDDLE: ("batch norm", "middle"),
    HIGH: ("batch norm", "high"),
    TOP: ("batch norm on top", "top"),
}
# A test accuracy within so many points of another is no better.
_NO_BETTER = 1.0
_SCALED = ("none", "batch norm", "batch norm on top")


@dataclass(frozen=True)
class ReferenceRuns:
    """Some of the reference runs.

    Attributes:
        table: a row per run, as `final_table` gives it, and `plateaued`, whether learning had before the first drop
            of the rate (`plateaus`).
        reduction: what is less than the paper's set-up; empty if nothing is.
        scales: of the networks of `SCHEMES`, log₁₀ of the gradients' norm at initialization; empty if not measured.
    """

    table: pd.DataFrame
    reduction: str
    scales: Mapping[str, Estimate]

    def of(self, column: str) -> dict[str, Estimate]:
        """A number of every configuration."""
        return estimates_by(self.table, AXIS, column)

    def at_plateau(self, one: Check, *names: str) -> Check:
        """A comparison of some configurations, undecided where learning was cut short in one of their runs."""
        if self.table[self.table[AXIS].isin(names)]["plateaued"].eq(True).all():
            return one
        why = "Not asked, since learning had not plateaued when the rate was lowered."
        return Check(f"{one.claim} {why}", "inconclusive", one.numbers)


def reference_runs(context: Context, effort: Effort, names: Sequence[str]) -> tuple[ReferenceRuns, SweepResult]:
    """Carry out some of the paper's reference runs."""
    axis: dict[str, dict[str, Any]] = {}
    for name in names:
        scheme, training = CONFIGURATIONS[name]
        rate, epochs = getattr(effort, training)
        axis[name] = {"scheme": SCHEMES[scheme], "rate": rate, "epochs": epochs}
    result = context.lab.run(effort.sweep(context, "reference runs", {AXIS: axis}))
    table = final_table(result)
    table["plateaued"] = table["hash"].map(plateaus(result.epochs))
    return ReferenceRuns(table, effort.reduction(context), {}), result


def _curves(result: SweepResult, title: str, columns: Sequence[str]) -> Axes:
    inks: dict[str, Ink] = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return accuracy_against_epoch(result.epochs, series=AXIS, inks=inks, title=title, columns=columns)


def _figure_1(runs: ReferenceRuns) -> list[Check]:
    accuracy, gap, loss = runs.of("test_accuracy"), runs.of("gap"), runs.of("training_loss")
    low = [
        larger(
            "At the low rate the batch-normalized network's test accuracy is at most "
            f"{_NO_BETTER:g} point above that of the unnormalized one.",
            accuracy[NONE],
            accuracy[LOW],
            by=-_NO_BETTER,
        ),
        larger(
            "At the low rate the batch-normalized network's training loss is below that of the unnormalized one.",
            loss[NONE],
            loss[LOW],
        ),
    ]
    middle = [
        larger(
            "With batch norm the middle rate reaches a higher test accuracy than the low one.",
            accuracy[MIDDLE],
            accuracy[LOW],
        ),
        larger(
            "With batch norm the gap of training and test accuracy is larger at the low rate than the middle one.",
            gap[LOW],
            gap[MIDDLE],
        ),
    ]
    high = [
        larger(
            "With batch norm the high rate reaches a higher test accuracy than the middle one.",
            accuracy[HIGH],
            accuracy[MIDDLE],
        ),
        larger(
            "With batch norm the gap of training and test accuracy is larger at the middle rate than the high one.",
            gap[MIDDLE],
            gap[HIGH],
        ),
    ]
    return [
        *(runs.at_plateau(_where_trained(runs, one), NONE, LOW) for one in low),
        *(runs.at_plateau(one, LOW, MIDDLE) for one in middle),
        *(runs.at_plateau(one, MIDDLE, HIGH) for one in high),
    ]


def _where_trained(runs: ReferenceRuns, one: Check) -> Check:
    """A comparison at the low rate, undecided where the unnormalized network did not train at it."""
    unnormalized, normalized = (chosen(runs.table, **{AXIS: name}) for name in (NONE, HIGH))
    if runs_train("It trains.", unnormalized, normalized).verdict == "holds":
        return one
    claim = f"{one.claim} Not asked, since the unnormalized network did not train at the low rate."
    return Check(claim, "inconclusive", one.numbers)


@artefact("understanding-bn/figure-1", basis="training", checks=_figure_1)
def learning_rates(context: Context, *, effort: Effort) -> Evidence:
    """Figure 1: at the small rate that trains without batch norm, batch norm is no better; its large rates are."""
    runs, result = reference_runs(context, effort, (NONE, LOW, MIDDLE, HIGH))
    return Evidence(
        summary(runs.table, (AXIS, "rate", "epochs"), ("test_accuracy", "training_accuracy", "gap", "training_loss")),
        facts=runs,
        setup=setup_of(context.lab, result),
        draw=lambda: _curves(result, "Batch norm and learning rates", ("test_accuracy", "training_accuracy")),
        remarks=failures(result),
        reduction=runs.reduction,
    )


def _bn_on_top(runs: ReferenceRuns) -> list[Check]:
    accuracy = runs.of("test_accuracy")
    top, full, unnormalized = (runs.scales[name] for name in ("batch norm on top", "batch norm", "none"))
    two_thirds = combined([(1 / 3, accuracy[NONE]), (2 / 3, accuracy[HIGH])])
    recovered = larger(
        "Its test accuracy is above two thirds of the way from the unnormalized to the normalized network's.",
        accuracy[TOP],
        two_thirds,
    )
    gains = larger("Batch norm gains.", accuracy[HIGH], accuracy[NONE])
    return [
        larger(
            "At initialization the gradients' norm is nearer that of the fully normalized network than that of the "
            "unnormalized one (in decades).",
            _distance(top, unnormalized),
            _distance(top, full),
        ),
        runs_train(
            "It trains at the learning rate 0.03, or the one that stands for it.",
            chosen(runs.table, **{AXIS: TOP}),
            chosen(runs.table, **{AXIS: HIGH}),
        ),
        # Where batch norm gains nothing there is no improvement to have a share of.
        runs.at_plateau(
            recovered if gains.verdict == "holds" else check(recovered.claim, None, **recovered.numbers),
            *(NONE, HIGH, TOP),
        ),
    ]


def _distance(first: Estimate, second: Estimate) -> Estimate:
    """|first - second| of every draw."""
    return over_draws(abs(value - second.by_seed[seed]) for seed, value in first.by_seed.items())


@artefact("understanding-bn/bn-on-top", basis="training", checks=_bn_on_top)
def norm_on_top(context: Context, *, effort: Effort, batch_size: int, draws: int) -> Evidence:
    """Section 3.1: one batch norm before the pooling scales gradients like all do, and gives most of the gain."""
    runs, result = reference_runs(context, effort, (NONE, HIGH, TOP))
    schemes = {name: SCHEMES[name] for name in _SCALED}
    scales = gradient_scales(context, effort, schemes, batch_size=batch_size, draws=draws)
    accuracy = runs.of("test_accuracy")
    gain = accuracy[HIGH].mean - accuracy[NONE].mean
    rate, epochs = effort.top
    quantities: dict[str, Estimate | float] = {
        "lr": rate,
        "epochs": epochs,
        "test_accuracy": accuracy[TOP],
        "test accuracy with batch norm at the high rate": accuracy[HIGH],
        "test accuracy without norm at the low rate": accuracy[NONE],
        "share of the gain recovered": (accuracy[TOP].mean - accuracy[NONE].mean) / gain if gain else math.nan,
        "log10 of the gradients' norm, on top": scales["batch norm on top"],
        "log10 of the gradients' norm, normalized": scales["batch norm"],
        "log10 of the gradients' norm, unnormalized": scales["none"],
    }
    return Evidence(
        quantity_table(quantities),
        facts=ReferenceRuns(runs.table, runs.reduction, scales),
        setup=setup_of(context.lab, result) | {"draws of initial gradients": draws},
        on=("quantity",),
        draw=lambda: _curves(result, "Batch norm on top only", ("test_accuracy",)),
        remarks=failures(result),
        reduction=runs.reduction,
    )


def _figure_15(runs: ReferenceRuns) -> list[Check]:
    training = runs.of("training_accuracy")
    below = within(
        "Its training accuracy ends somewhat below that of the normalized network: by 0 to 10 points.",
        difference(training[HIGH], training[TOP]),
        0.0,
        10.0,
    )
    return [runs.at_plateau(below, HIGH, TOP)]


@artefact("understanding-bn/figure-15", basis="training", checks=_figure_15)
def training_accuracy_on_top(context: Context, *, effort: Effort) -> Evidence:
    """Figure 15: with batch norm on top only, training accuracy ends somewhat below full batch norm's."""
    runs, result = reference_runs(context, effort, (NONE, HIGH, TOP))
    return Evidence(
        summary(runs.table, (AXIS, "rate", "epochs"), ("training_accuracy",)),
        facts=runs,
        setup=setup_of(context.lab, result),
        draw=lambda: _curves(result, "Training with batch norm on top only", ("training_accuracy",)),
        remarks=("“Somewhat below” is taken as less than 10 points.", *failures(result)),
        reduction=runs.reduction,
    )


def _figure_16(runs: ReferenceRuns) -> list[Check]:
    accuracy = runs.of("test_accuracy")
    final = within("Its final test accuracy is the published 90.1 %, to a point.", accuracy[TOP], 89.1, 91.1)
    above = larger("It lies above that of the unnormalized network.", accuracy[TOP], accuracy[NONE])
    below = larger("It lies below that of the fully normalized network.", accuracy[HIGH], accuracy[TOP])
    return [
        at_scale(final, runs.reduction),
        runs.at_plateau(above, NONE, TOP),
        runs.at_plateau(below, HIGH, TOP),
    ]


@artefact("understanding-bn/figure-16", basis="training", checks=_figure_16)
def test_accuracy_on_top(context: Context, *, effort: Effort) -> Evidence:
    """Figure 16: with batch norm on top only, test accuracy ends at 90.1 %."""
    runs, result = reference_runs(context, effort, (NONE, HIGH, TOP))
    accuracy = runs.of("test_accuracy")
    return Evidence(
        quantity_table(
            {"final_test_accuracy": accuracy[TOP]}
            | {f"test accuracy, {name}": one for name, one in accuracy.items() if name != TOP}
        ),
        facts=runs,
        setup=setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _curves(result, "Test accuracy with batch norm on top only", ("test_accuracy",)),
        remarks=failures(result),
        reduction=runs.reduction,
    )
