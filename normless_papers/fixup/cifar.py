"""CIFAR-10 and SVHN: test errors (tables 1 and 4) and the ablation over the first epochs (figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.spec import parse_call
from normless_lab.plots import accuracy_against_epoch, series_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, evidence_of, summary, with_published
from normless_papers.plots import TEST_ERRORS, beside_published

RATE = 0.1
"""The learning rate at which networks with batch norm are usually trained."""

ERROR = "test error (%)"

METHODS: Mapping[str, str] = {"batch_norm": "batch_norm", "xavier_init": "xavier", "fixup": "fixup"}


def _at_both_rates(context: Context, *, effort: Effort, xavier_rates: tuple[float, ...]) -> TrainingSweeps:
    # A protocol belongs to a method: what batch norm needs to start kills Fixup.
    axes = {name: {"scheme": scheme, **effort.variants.get(name, {})} for name, scheme in METHODS.items()}
    smaller = {"xavier_init": axes.pop("xavier_init")}
    large = effort.sweep(context, "at the large rate", {"method": axes}, rates=(RATE,))
    small = effort.sweep(context, "at smaller rates", {"method": smaller}, rates=xavier_rates)
    return effort.training(context, large, small)


@artefact("fixup/table-1", basis="training", trains=_at_both_rates)
def test_errors(context: Context, runs: Runs, *, effort: Effort, xavier_rates: tuple[float, ...]) -> Evidence:
    xavier = runs.table["method"] == "xavier_init"
    shown = runs.table[~xavier | (runs.table["rate"] == runs.best_rate(method="xavier_init"))]
    measured = summary(shown, ("method", "rate"), ("test_error",))
    measured["normalization"] = measured["method"] == "batch_norm"
    measured["large_lr"] = measured["rate"] >= RATE
    remark = (
        "The paper quotes batch norm and Xavier from other papers. Xavier's weights have the best of the rates "
        f"{', '.join(f'{rate:g}' for rate in xavier_rates)} by test accuracy."
    )
    draw = partial(draw_errors, "fixup/table-1", measured, ("method",), "Batch norm, Xavier, Fixup")
    return runs.evidence(measured, draw, on=("method",), remarks=(remark,))


def draw_errors(name: str, measured: pd.DataFrame, on: Sequence[str], title: str, x_label: str = ERROR) -> Axes:
    """Draw the test errors of a table's rows beside the published ones."""
    return beside_published(with_published(name, measured, on, "test_error"), TEST_ERRORS, "measured", title, x_label)


def draw_curves(
    runs: Runs, axis: str, title: str, columns: Sequence[str] = ("test_accuracy",), ax: Axes | None = None
) -> Axes:
    """Draw accuracies against epochs, with a color for each label of an axis."""
    inks = {str(name): series_ink(place) for place, name in enumerate(runs.labels(axis))}
    return accuracy_against_epoch(runs.epochs, ax, series=axis, inks=inks, title=title, columns=columns)


CONFIGURATIONS: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "Fixup": "fixup",
    "no bias": "fixup(biases=False)",
    "0.1x, no bias": "fixup(biases=False, gain=0.1)",
    "10x, no bias": "fixup(biases=False, gain=10)",
    "no residual": "remove_branches",
}


def _first_ten_epochs(context: Context, *, effort: Effort) -> TrainingSweeps:
    axis = {name: {"scheme": scheme} for name, scheme in CONFIGURATIONS.items()}
    return effort.training(context, effort.sweep(context, "ablation", {"configuration": axis}, schedule="constant"))


@artefact("fixup/figure-4", basis="training", trains=_first_ten_epochs)
def ablation(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    return runs.evidence(
        runs.summary(("configuration",), ("training_accuracy", "curve", "test_accuracy")),
        lambda: draw_curves(runs, "configuration", "Fixup and its ablations", ("training_accuracy",)),
    )


Axis = Mapping[str, Mapping[str, Any]]
REGULARIZED: Axis = {
    "batch_norm + mixup + cutout": {"scheme": "batch_norm"},
    "fixup + mixup + cutout": {"scheme": "fixup", "scalar_rate_scale": 0.1},
}


def by_data(
    context: Context, efforts: Mapping[str, Effort], sweep: str, axis: Axis, metric: str = "test_accuracy"
) -> dict[str, TrainingSweeps]:
    """Declare methods on several data sets; `sweep` is a format of the sweep's name with the data set's."""
    return {
        data: effort.training(context, effort.sweep(context, sweep.format(data), {"method": axis}), metrics=(metric,))
        for data, effort in efforts.items()
    }


@artefact(
    "fixup/table-4",
    basis="training",
    trains=partial(by_data, sweep="regularized, {}", axis=REGULARIZED),
)
def regularized(context: Context, runs_by_data: Mapping[str, Runs], *, efforts: Mapping[str, Effort]) -> Evidence:
    columns = ("data", "method")
    tables = [runs.summary(("method",), ("test_error", "training_accuracy")) for runs in runs_by_data.values()]
    measured = pd.concat(tables, keys=runs_by_data, names=["data"]).reset_index("data").reset_index(drop=True)
    measured.insert(2, "normalization", measured["method"].str.startswith("batch_norm"))
    trained = [(data, effort.data_in(context)) for data, effort in efforts.items()]
    return evidence_of(
        runs_by_data,
        measured,
        partial(draw_errors, "fixup/table-4", measured, columns, "With Mixup and Cutout"),
        on=columns,
        remarks=(*(f"{own} replaces the table's {name}." for name, own in trained if parse_call(own)[0] != name),),
    )
