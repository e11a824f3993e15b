"""ResNet-110 on CIFAR-10: test errors (table 1) and the ablation over the first epochs (figure 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import chosen, estimate, failures, final_table, setup_of, summary, with_published
from normless.papers.fixup.effort import RATE, Effort
from normless.papers.trained import runs_do_not_train, runs_train
from normless.papers.verdict import Estimate, larger
from normless.report.beside_published import beside_published
from normless.report.curves import accuracy_against_epoch
from normless.report.probes.series import series_ink

METHODS: Mapping[str, str] = {"batch_norm": "batch_norm", "xavier_init": "xavier", "fixup": "fixup"}


@artefact("fixup/table-1", basis="training")
def test_errors(context: Context, *, effort: Effort, xavier_rates: tuple[float, ...]) -> Evidence:
    """Table 1: Fixup trains at batch norm's rate and has 7 % lower relative test error than Xavier's weights."""
    large = context.lab.run(
        effort.sweep(context, "at the large rate", {"method": _axis(("batch_norm", "fixup"))}, rates=(RATE,))
    )
    small = context.lab.run(
        effort.sweep(context, "at smaller rates", {"method": _axis(("xavier_init",))}, rates=xavier_rates)
    )
    best = small.optima("test_accuracy").iloc[0]
    xavier = final_table(small)
    table = pd.concat([final_table(large), chosen(xavier, rate=best["rate"])], ignore_index=True)
    errors = {str(name): estimate(runs, "test_error") for name, runs in table.groupby("method", sort=False)}
    measured = summary(table, ("method", "rate"), ("test_error",))
    measured["normalization"] = measured["method"] == "batch_norm"
    measured["large_lr"] = measured["rate"] >= RATE
    checks = [
        runs_train(f"Fixup trains at batch norm's learning rate {RATE:g}.", chosen(table, method="fixup")),
        larger(
            "Fixup has at least 7 % lower test error than Xavier's weights at their best rate.",
            _scaled(errors.get("xavier_init"), 0.93),
            errors["fixup"],
        ),
        runs_do_not_train(
            "With Xavier's weights it cannot be trained at a tenth of that rate.", chosen(xavier, rate=RATE / 10)
        ),
        larger("Batch norm has a lower test error than Fixup.", errors["fixup"], errors["batch_norm"]),
    ]
    return Evidence(
        measured,
        qualified(checks, effort.reduced),
        setup_of(context.lab, large, small) | {"method": dict(METHODS)},
        on=("method",),
        draw=lambda: beside_published(
            with_published("fixup/table-1", measured, ("method",), "test_error"),
            title="Batch norm, Xavier, Fixup",
            across="test error (%)",
        ),
        remarks=(
            "The paper quotes batch norm and Xavier from other papers. Of Xavier's weights the best of the rates "
            f"{', '.join(f'{rate:g}' for rate in xavier_rates)} by test accuracy is shown.",
            *failures(large, small),
        ),
    )


def _axis(methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {name: {"scheme": METHODS[name]} for name in methods}


def _scaled(one: Estimate | None, factor: float) -> Estimate:
    """A multiple of an estimate; unknown where there is none."""
    if one is None:
        return Estimate(math.nan, math.nan)
    return Estimate(factor * one.mean, factor * one.deviation, one.n)


CONFIGURATIONS: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "Fixup": "fixup",
    "no bias": "fixup(biases=False)",
    "0.1x, no bias": "fixup(biases=False, gain=0.1)",
    "10x, no bias": "fixup(biases=False, gain=10)",
    "no residual": "remove_branches",
}
# Training accuracies so many points apart are the same speed.
_SAME = 5.0


@artefact("fixup/figure-4", basis="training")
def ablation(context: Context, *, effort: Effort) -> Evidence:
    """Figure 4: a tenth of the scale, or no branch, slows learning, ten times the scale fails, and biases help."""
    axis = {name: {"scheme": scheme} for name, scheme in CONFIGURATIONS.items()}
    result = context.lab.run(
        effort.sweep(context, "ablation", {"configuration": axis}, rates=(RATE,), schedule="constant")
    )
    table = final_table(result)
    accuracy = {
        str(name): estimate(runs, "training_accuracy") for name, runs in table.groupby("configuration", sort=False)
    }
    suggested = accuracy["no bias"]
    checks = [
        larger("At a tenth of the scale training accuracy is lower.", suggested, accuracy["0.1x, no bias"]),
        larger("Without residual branches training accuracy is lower.", suggested, accuracy["no residual"]),
        runs_do_not_train("At ten times the scale it fails to train.", chosen(table, configuration="10x, no bias")),
        larger("With biases training accuracy is higher.", accuracy["Fixup"], suggested),
        larger(
            f"Fixup keeps up with batch norm: its training accuracy is at most {_SAME:g} points lower.",
            accuracy["Fixup"],
            accuracy["BatchNorm"],
            by=-_SAME,
        ),
    ]
    inks = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return Evidence(
        summary(table, ("configuration",), ("training_accuracy", "test_accuracy")),
        qualified(checks, effort.reduced),
        setup_of(context.lab, result),
        draw=lambda: accuracy_against_epoch(
            result.epochs,
            series="configuration",
            inks=inks,
            title="Fixup and its ablations",
            columns=("training_accuracy",),
        ),
        remarks=(
            "Accuracies are means over an epoch's minibatches, where the paper has a moving average over ten steps. "
            "The ablations keep rule 1 (last layer of a branch at zero) and the multipliers; the paper does not say.",
            *failures(result),
        ),
    )
