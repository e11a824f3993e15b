"""ResNet-50 on ImageNet: curves (figures 5 and 6), and the rate of scalars (section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import final_table, setup_of, summary
from normless.papers.fixup.imagenet_setup import (
    BATCH_NORM,
    BATCH_NORM_MIXUP,
    FIXUP,
    FIXUP_MIXUP,
    FIXUP_MIXUP_EQUAL,
    GROUP_NORM,
    GROUP_NORM_MIXUP,
    Networks,
    over_replicates,
    remarks_on,
    trained,
)
from normless.papers.verdict import larger
from normless.report.curves import accuracy_against_epoch
from normless.report.probes.series import series_ink


def _curves(result: SweepResult, title: str, columns: Sequence[str]) -> Axes:
    inks = {name: series_ink(place) for place, name in enumerate(result.sweep.axes["method"])}
    return accuracy_against_epoch(result.epochs, series="method", inks=inks, title=title, columns=columns)


@artefact("fixup/figure-5", basis="training")
def overfitting(context: Context, *, networks: Networks) -> Evidence:
    """Figure 5: without Mixup Fixup ends with a lower training error and a higher test error than norms."""
    effort = networks.resnet_50
    result = trained(context, effort, {"BatchNorm": BATCH_NORM, "GroupNorm": GROUP_NORM, "Fixup": FIXUP})
    table = final_table(result)
    checks = []
    for name in ("BatchNorm", "GroupNorm"):
        checks += [
            larger(
                f"Fixup's training error ends below that of {name}.",
                over_replicates(table, "training_accuracy", "Fixup"),
                over_replicates(table, "training_accuracy", name),
            ),
            larger(
                f"Fixup's test error ends above that of {name}.",
                over_replicates(table, "test_error", "Fixup"),
                over_replicates(table, "test_error", name),
            ),
        ]
    return Evidence(
        summary(table, ("method",), ("training_accuracy", "test_error", "gap")),
        qualified(checks, effort.reduced),
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "Without Mixup", ("test_accuracy", "training_accuracy")),
        remarks=remarks_on(context, effort, result),
    )


@artefact("fixup/figure-6", basis="training")
def with_mixup(context: Context, *, networks: Networks) -> Evidence:
    """Figure 6: with Mixup Fixup's final test error closely matches group norm's."""
    effort = networks.resnet_50
    methods = {
        "BatchNorm + Mixup": BATCH_NORM_MIXUP,
        "GroupNorm + Mixup": GROUP_NORM_MIXUP,
        "Fixup + Mixup": FIXUP_MIXUP,
    }
    result = trained(context, effort, methods)
    table = final_table(result)
    group, fixup = (over_replicates(table, "test_error", name) for name in ("GroupNorm + Mixup", "Fixup + Mixup"))
    checks = [
        larger("Fixup's test error is at most 0.5 points above group norm's.", group, fixup, by=-0.5),
        larger("Fixup's test error is at most 0.5 points below group norm's.", fixup, group, by=-0.5),
    ]
    return Evidence(
        summary(table, ("method",), ("test_error", "training_accuracy")),
        qualified(checks, effort.reduced),
        setup_of(context.lab, result),
        draw=lambda: _curves(result, "With Mixup", ("test_accuracy",)),
        remarks=remarks_on(context, effort, result),
    )


@artefact("fixup/scalar-lr", basis="training")
def scalar_rate(context: Context, *, networks: Networks) -> Evidence:
    """Section 4.2: with Mixup, Fixup generalizes better with a tenth of the rate for its multipliers and biases."""
    effort = networks.resnet_50
    methods = {
        "mixup, equal rates": FIXUP_MIXUP_EQUAL,
        "mixup, scalars at 1/10": FIXUP_MIXUP,
        "no mixup, equal rates": FIXUP,
        "no mixup, scalars at 1/10": {**FIXUP, "scalar_rate_scale": 0.1},
    }
    result = trained(context, effort, methods)
    table = final_table(result)
    errors = {name: over_replicates(table, "test_error", name) for name in methods}
    checks = [
        larger(
            "With Mixup the test error is lower with a tenth of the rate for scalars.",
            errors["mixup, equal rates"],
            errors["mixup, scalars at 1/10"],
        ),
        larger(
            "Without Mixup the default rate is no worse: its test error is at most 0.5 points above.",
            errors["no mixup, scalars at 1/10"],
            errors["no mixup, equal rates"],
            by=-0.5,
        ),
    ]
    rows = [{"quantity": "lr_factor", "value": FIXUP_MIXUP["scalar_rate_scale"]}]
    rows += [
        {"quantity": f"test error, {name}", "value": one.mean, "deviation": one.deviation, "n": one.n}
        for name, one in errors.items()
    ]
    return Evidence(
        pd.DataFrame(rows),
        qualified(checks, effort.reduced),
        setup_of(context.lab, result),
        on=("quantity",),
        draw=lambda: _curves(result, "The rate of scalars", ("test_accuracy",)),
        remarks=remarks_on(context, effort, result),
    )
