"""ResNet-50 on ImageNet: curves (figures 5 and 6), and the rate of scalars (section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import accuracy_against_epoch, series_ink
from normless.sweeps import SweepResult
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, difference, larger, within
from normless_papers.run_summary import final_table, setup_of
from normless_papers.runs import chosen, summary
from normless_papers.trained import best_accuracy, chance_of, trains
from normless_papers.fixup.effort import reduction_of
from normless_papers.fixup.imagenet_setup import (
    BATCH_NORM,
    BATCH_NORM_MIXUP,
    FIXUP,
    FIXUP_MIXUP,
    FIXUP_MIXUP_EQUAL,
    GROUP_NORM,
    GROUP_NORM_MIXUP,
    Networks,
    known_error,
    over_replicates,
    remarks_on,
    trained,
)


def _curves(result: SweepResult, title: str, columns: Sequence[str]) -> Axes:
    inks = {name: series_ink(place) for place, name in enumerate(result.sweep.axes["method"])}
    return accuracy_against_epoch(result.epochs, series="method", inks=inks, title=title, columns=columns)


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods.

    Attributes:
        runs: as in `normless_papers.run_summary.final_table`.
        reduction: what is less than the paper's training; empty if nothing is.
    """

    runs: pd.DataFrame
    reduction: str

    def number(self, column: str, method: str) -> Estimate:
        """In percent."""
        return over_replicates(self.runs, column, method, self.reduction)


def _figure_5(found: Comparison) -> list[Check]:
    return [
        one
        for name in ("BatchNorm", "GroupNorm")
        for one in (
            larger(
                f"Fixup's training error ends below that of {name}.",
                found.number("training_accuracy", "Fixup"),
                found.number("training_accuracy", name),
            ),
            larger(
                f"Fixup's test error ends above that of {name}.",
                found.number("test_error", "Fixup"),
                found.number("test_error", name),
            ),
        )
    ]


@artefact("fixup/figure-5", basis="training", checks=_figure_5)
def overfitting(context: Context, *, networks: Networks) -> Evidence:
    """Figure 5: without Mixup Fixup ends with a lower training error and a higher test error than norms."""
    effort = networks.resnet_50
    result = trained(context, effort, {"BatchNorm": BATCH_NORM, "GroupNorm": GROUP_NORM, "Fixup": FIXUP})
    facts = Comparison(final_table(result), reduction_of(context, effort))
    return Evidence(
        summary(facts.runs, ("method",), ("training_accuracy", "test_error", "gap")),
        facts,
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "Without Mixup", ("test_accuracy", "training_accuracy")),
        remarks=remarks_on(context, effort, result),
        reduction=facts.reduction,
    )


def _figure_6(found: Comparison) -> list[Check]:
    accuracy, control = (
        known_error(best_accuracy(chosen(found.runs, method=name)), found.reduction)
        for name in ("Fixup + Mixup", "BatchNorm + Mixup")
    )
    group, fixup = (found.number("test_error", name) for name in ("GroupNorm + Mixup", "Fixup + Mixup"))
    return [
        trains("With Mixup Fixup trains at the rate of batch norm.", accuracy, control, chance_of(found.runs)),
        # The paper has them 0.1 points apart.
        at_scale(
            within(
                "Fixup's test error is at most 0.5 points from group norm's.", difference(fixup, group), -0.5, 0.5
            ),
            found.reduction,
        ),
    ]


@artefact("fixup/figure-6", basis="training", checks=_figure_6)
def with_mixup(context: Context, *, networks: Networks) -> Evidence:
    """Figure 6: with Mixup Fixup's final test error closely matches group norm's."""
    effort = networks.resnet_50
    methods = {
        "BatchNorm + Mixup": BATCH_NORM_MIXUP,
        "GroupNorm + Mixup": GROUP_NORM_MIXUP,
        "Fixup + Mixup": FIXUP_MIXUP,
    }
    result = trained(context, effort, methods)
    facts = Comparison(final_table(result), reduction_of(context, effort))
    return Evidence(
        summary(facts.runs, ("method",), ("test_error", "training_accuracy")),
        facts,
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "With Mixup", ("test_accuracy",)),
        remarks=remarks_on(context, effort, result),
        reduction=facts.reduction,
    )


EQUAL, TENTH = "mixup, equal rates", "mixup, scalars at 1/10"


def _scalar_rate(found: Comparison) -> list[Check]:
    return [
        larger(
            "With Mixup the test error is lower with a tenth of the rate for scalars.",
            found.number("test_error", EQUAL),
            found.number("test_error", TENTH),
        )
    ]


@artefact("fixup/scalar-lr", basis="training", checks=_scalar_rate)
def scalar_rate(context: Context, *, networks: Networks) -> Evidence:
    """Section 4.2: with Mixup, Fixup generalizes better with a tenth of the rate for its multipliers and biases."""
    effort = networks.resnet_50
    result = trained(context, effort, {EQUAL: FIXUP_MIXUP_EQUAL, TENTH: FIXUP_MIXUP})
    facts = Comparison(final_table(result), reduction_of(context, effort))
    errors = {name: facts.number("test_error", name) for name in (EQUAL, TENTH)}
    rows = [{"quantity": "lr_factor", "value": FIXUP_MIXUP["scalar_rate_scale"]}]
    rows += [
        {"quantity": f"test error, {name}", "value": one.mean, "deviation": one.deviation, "n": one.n}
        for name, one in errors.items()
    ]
    return Evidence(
        pd.DataFrame(rows),
        facts,
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _curves(result, "The rate of scalars", ("test_accuracy",)),
        remarks=remarks_on(context, effort, result),
        reduction=facts.reduction,
    )
