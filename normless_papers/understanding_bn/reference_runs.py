"""The paper's reference runs: figure 1, and batch norm only at the top (section 3.1, appendix G)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from normless.plots import Ink, accuracy_against_epoch, series_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import (
    Check,
    Estimate,
    at_scale,
    check,
    combined,
    difference,
    larger,
    over_draws,
    quantity_table,
    within,
)
from normless_papers.effort import Effort
from normless_papers.runs import Runs, carry_out
from normless_papers.stated_claims import exceeds, stated
from normless_papers.understanding_bn.gradient_scale import gradient_scales
from normless_papers.understanding_bn.plateau import plateaus
from normless_papers.understanding_bn.protocol import SCHEMES

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
        runs: axis `configuration`; in the table `plateaued`, whether learning had before the first drop of the rate.
        scales: of the networks of `SCHEMES`, log₁₀ of the gradients' norm at initialization; empty if not measured.
    """

    runs: Runs
    scales: Mapping[str, Estimate] = field(default_factory=dict)

    def of(self, column: str) -> dict[str, Estimate]:
        """A number of every configuration."""
        return self.runs.finals(column, AXIS)

    def at_plateau(self, one: Check, *names: str) -> Check:
        """A comparison of some configurations, undecided where learning was cut short in one of their runs."""
        table = self.runs.table
        if table[table[AXIS].isin(names)]["plateaued"].eq(True).all():
            return one
        why = "Not asked, since learning had not plateaued when the rate was lowered."
        return Check(f"{one.claim} {why}", "inconclusive", one.numbers)


def reference_runs(context: Context, effort: Effort, names: Sequence[str]) -> ReferenceRuns:
    """Carry out some of the paper's reference runs."""
    axis = {
        name: {"scheme": SCHEMES[scheme], **effort.variants[training]}
        for name, (scheme, training) in CONFIGURATIONS.items()
        if name in names
    }
    sweep = effort.sweep(context, "reference runs", {AXIS: axis})
    runs = carry_out(context, sweep, reduction=effort.reduction(context))
    table = runs.table.assign(plateaued=runs.table["hash"].map(plateaus(runs.epochs)))
    return ReferenceRuns(replace(runs, table=table))


def _evidence(
    facts: ReferenceRuns, measured: pd.DataFrame, title: str, columns: Sequence[str], **more: Any
) -> Evidence:
    """The runs as evidence, with the curves of some columns."""
    runs = facts.runs
    inks: dict[str, Ink] = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return runs.evidence(
        measured,
        lambda: accuracy_against_epoch(runs.epochs, series=AXIS, inks=inks, title=title, columns=columns),
        facts=facts,
        **more,
    )


def _figure_1(runs: ReferenceRuns) -> list[Check]:
    accuracy, gap, loss = runs.of("test_accuracy"), runs.of("gap"), runs.of("training_loss")
    low = stated(
        {
            "At the low rate the batch-normalized network's test accuracy is at most "
            f"{_NO_BETTER:g} point above that of the unnormalized one.": exceeds(
                accuracy[NONE], accuracy[LOW], by=-_NO_BETTER
            ),
            "At the low rate the batch-normalized network's training loss is below that of the "
            "unnormalized one.": exceeds(loss[NONE], loss[LOW]),
        }
    )
    checks = [runs.at_plateau(_where_trained(runs, one), NONE, LOW) for one in low]
    words = {LOW: "low", MIDDLE: "middle", HIGH: "high"}
    for lower, higher in ((LOW, MIDDLE), (MIDDLE, HIGH)):
        tests = {
            f"With batch norm the {words[higher]} rate reaches a higher test accuracy than the {words[lower]} "
            "one.": exceeds(accuracy[higher], accuracy[lower]),
            f"With batch norm the gap of training and test accuracy is larger at the {words[lower]} rate than the "
            f"{words[higher]} one.": exceeds(gap[lower], gap[higher]),
        }
        checks += [runs.at_plateau(one, lower, higher) for one in stated(tests)]
    return checks


def _where_trained(runs: ReferenceRuns, one: Check) -> Check:
    """A comparison at the low rate, undecided where the unnormalized network did not train at it."""
    if runs.runs.trains("It trains.", against={AXIS: HIGH}, **dict[str, Any]({AXIS: NONE})).verdict == "holds":
        return one
    claim = f"{one.claim} Not asked, since the unnormalized network did not train at the low rate."
    return Check(claim, "inconclusive", one.numbers)


@artefact("understanding-bn/figure-1", basis="training", checks=_figure_1)
def learning_rates(context: Context, *, effort: Effort) -> Evidence:
    """Figure 1: at the small rate that trains without batch norm, batch norm is no better; its large rates are."""
    facts = reference_runs(context, effort, (NONE, LOW, MIDDLE, HIGH))
    columns = ("test_accuracy", "training_accuracy", "gap", "training_loss")
    measured = facts.runs.summary((AXIS, "rate", "epochs"), columns)
    return _evidence(facts, measured, "Batch norm and learning rates", ("test_accuracy", "training_accuracy"))


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
        runs.runs.trains(
            "It trains at the learning rate 0.03, or the one that stands for it.",
            against={AXIS: HIGH},
            **dict[str, Any]({AXIS: TOP}),
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
    facts = reference_runs(context, effort, (NONE, HIGH, TOP))
    schemes = {name: SCHEMES[name] for name in _SCALED}
    scales = gradient_scales(context, effort, schemes, batch_size=batch_size, draws=draws)
    accuracy = facts.of("test_accuracy")
    gain = accuracy[HIGH].mean - accuracy[NONE].mean
    quantities: dict[str, Estimate | float] = {
        "lr": effort.variants["top"]["rate"],
        "epochs": effort.variants["top"]["epochs"],
        "test_accuracy": accuracy[TOP],
        "test accuracy with batch norm at the high rate": accuracy[HIGH],
        "test accuracy without norm at the low rate": accuracy[NONE],
        "share of the gain recovered": (accuracy[TOP].mean - accuracy[NONE].mean) / gain if gain else math.nan,
        "log10 of the gradients' norm, on top": scales["batch norm on top"],
        "log10 of the gradients' norm, normalized": scales["batch norm"],
        "log10 of the gradients' norm, unnormalized": scales["none"],
    }
    facts = replace(facts, scales=scales)
    columns = ("test_accuracy",)
    return _evidence(facts, quantity_table(quantities), "Batch norm on top only", columns, on=("quantity",))


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
    facts, columns = reference_runs(context, effort, (NONE, HIGH, TOP)), ("training_accuracy",)
    measured = facts.runs.summary((AXIS, "rate", "epochs"), columns)
    remark = "“Somewhat below” is taken as less than 10 points."
    return _evidence(facts, measured, "Training with batch norm on top only", columns, remarks=(remark,))


def _figure_16(runs: ReferenceRuns) -> list[Check]:
    accuracy = runs.of("test_accuracy")
    final = within("Its final test accuracy is the published 90.1 %, to a point.", accuracy[TOP], 89.1, 91.1)
    above = larger("It lies above that of the unnormalized network.", accuracy[TOP], accuracy[NONE])
    below = larger("It lies below that of the fully normalized network.", accuracy[HIGH], accuracy[TOP])
    return [
        at_scale(final, runs.runs.reduction),
        runs.at_plateau(above, NONE, TOP),
        runs.at_plateau(below, HIGH, TOP),
    ]


@artefact("understanding-bn/figure-16", basis="training", checks=_figure_16)
def test_accuracy_on_top(context: Context, *, effort: Effort) -> Evidence:
    """Figure 16: with batch norm on top only, test accuracy ends at 90.1 %."""
    facts = reference_runs(context, effort, (NONE, HIGH, TOP))
    accuracy = facts.of("test_accuracy")
    quantities = {"final_test_accuracy": accuracy.pop(TOP)}
    measured = quantity_table(quantities | {f"test accuracy, {name}": one for name, one in accuracy.items()})
    title = "Test accuracy with batch norm on top only"
    return _evidence(facts, measured, title, ("test_accuracy",), on=("quantity",))
