"""ResNet-110 on CIFAR-10: test errors (table 1) and the ablation over the first epochs (figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.plots import accuracy_against_epoch, series_ink
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.fixup.effort import RATE, Effort, reduction_of, with_curves
from normless_papers.plots import BESIDE_PUBLISHED
from normless_papers.run_summary import chosen, estimate, failures, final_table, setup_of, summary, with_published
from normless_papers.trained import runs_do_not_train, runs_train
from normless_papers.verdict import Check, Estimate, at_scale, larger

METHODS: Mapping[str, str] = {"batch_norm": "batch_norm", "xavier_init": "xavier", "fixup": "fixup"}


@dataclass(frozen=True)
class Errors:
    """Table 1.

    Attributes:
        runs: of every method and rate, as in `normless_papers.run_summary.final_table`.
        best_rate: of Xavier's weights, by test accuracy.
        reduction: what is less than the paper's training; empty if nothing is.
    """

    runs: pd.DataFrame
    best_rate: float
    reduction: str

    @property
    def shown(self) -> pd.DataFrame:
        """The runs of the table: Xavier's weights at their best rate alone."""
        return self.runs[(self.runs["method"] != "xavier_init") | (self.runs["rate"] == self.best_rate)]


def _table_1(found: Errors) -> list[Check]:
    batch_norm, fixup, xavier = (chosen(found.shown, method=name) for name in ("batch_norm", "fixup", "xavier_init"))
    errors = [estimate(runs, "test_error") for runs in (batch_norm, fixup, xavier)]
    tenth = chosen(found.runs, method="xavier_init", rate=RATE / 10)
    # As printed it is 6.9 %, rounded to 7 %.
    by_seven = larger(
        "Fixup has a 7 % lower test error than Xavier's weights, as a share of theirs: at least 6.5 %.",
        errors[2].scaled(0.935),
        errors[1],
    )
    fails = runs_do_not_train(
        "With Xavier's weights it cannot be trained at a tenth of that rate.", tenth, batch_norm
    )
    return [
        runs_train(f"Fixup trains at batch norm's learning rate {RATE:g}.", fixup, batch_norm),
        at_scale(fails, found.reduction),
        larger("Fixup has a lower test error than Xavier's weights at their best rate.", errors[2], errors[1]),
        at_scale(by_seven, found.reduction),
        larger("Batch norm has a lower test error than Fixup.", errors[1], errors[0]),
    ]


@artefact("fixup/table-1", basis="training", checks=_table_1)
def test_errors(context: Context, *, effort: Effort, xavier_rates: tuple[float, ...]) -> Evidence:
    """Table 1: Fixup trains at batch norm's rate and has 7 % lower relative test error than Xavier's weights."""
    large = context.lab.run(
        effort.sweep(context, "at the large rate", {"method": _axis(("batch_norm", "fixup"))}, rates=(RATE,))
    )
    small = context.lab.run(
        effort.sweep(context, "at smaller rates", {"method": _axis(("xavier_init",))}, rates=xavier_rates)
    )
    facts = Errors(
        runs=pd.concat([final_table(large), final_table(small)], ignore_index=True),
        best_rate=float(small.optima("test_accuracy").iloc[0]["rate"]),
        reduction=reduction_of(context, effort),
    )
    measured = summary(facts.shown, ("method", "rate"), ("test_error",))
    measured["normalization"] = measured["method"] == "batch_norm"
    measured["large_lr"] = measured["rate"] >= RATE
    return Evidence(
        measured,
        facts,
        setup_of(context.lab, large, small) | {"method": dict(METHODS)},
        on=("method",),
        draw=lambda: BESIDE_PUBLISHED(
            with_published("fixup/table-1", measured, ("method",), "test_error"),
            title="Batch norm, Xavier, Fixup",
            x_label="test error (%); diamonds: published",
        ),
        remarks=(
            "The paper quotes batch norm and Xavier from other papers. Of Xavier's weights the best of the rates "
            f"{', '.join(f'{rate:g}' for rate in xavier_rates)} by test accuracy is shown.",
            *failures(large, small),
        ),
        reduction=facts.reduction,
    )


def _axis(methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {name: {"scheme": METHODS[name]} for name in methods}


CONFIGURATIONS: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "Fixup": "fixup",
    "no bias": "fixup(biases=False)",
    "0.1x, no bias": "fixup(biases=False, gain=0.1)",
    "10x, no bias": "fixup(biases=False, gain=10)",
    "no residual": "remove_branches",
}
# Curves whose mean heights are so many points apart rise as fast.
_SAME = 5.0


@dataclass(frozen=True)
class Ablation:
    """Figure 4.

    Attributes:
        runs: as in `normless_papers.fixup.effort.with_curves`.
    """

    runs: pd.DataFrame

    def curve(self, name: str) -> Estimate:
        """Of a configuration."""
        return estimate(chosen(self.runs, configuration=name), "curve")


def _figure_4(found: Ablation) -> list[Check]:
    suggested, fixup = found.curve("no bias"), found.curve("Fixup")
    control = chosen(found.runs, configuration="BatchNorm")
    return [
        larger("A tenth of the scale slows down learning.", suggested, found.curve("0.1x, no bias")),
        larger("So does the removal of all residual branches.", suggested, found.curve("no residual")),
        runs_do_not_train(
            "At ten times the scale training fails.", chosen(found.runs, configuration="10x, no bias"), control
        ),
        larger("Biases speed it up.", fixup, suggested),
        larger(
            f"Fixup keeps up with batch norm: its curve is at most {_SAME:g} points lower.",
            fixup,
            found.curve("BatchNorm"),
            by=-_SAME,
        ),
    ]


@artefact("fixup/figure-4", basis="training", checks=_figure_4)
def ablation(context: Context, *, effort: Effort) -> Evidence:
    """Figure 4: a tenth of the scale, or no branch, slows learning, ten times the scale fails, and biases help."""
    axis = {name: {"scheme": scheme} for name, scheme in CONFIGURATIONS.items()}
    result = context.lab.run(
        effort.sweep(context, "ablation", {"configuration": axis}, rates=(RATE,), schedule="constant")
    )
    table = with_curves(result)
    inks = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return Evidence(
        summary(table, ("configuration",), ("training_accuracy", "curve", "test_accuracy")),
        Ablation(table),
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
            "Speed is the mean height of that curve. The ablations keep rule 1 (last layer of a branch at zero) and "
            "the multipliers; the paper does not say.",
            *failures(result),
        ),
        reduction=reduction_of(context, effort),
    )
