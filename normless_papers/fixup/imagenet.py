"""Fixup on ImageNet: test errors (table 2), curves (figures 5 and 6), the learning rate of scalars (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Estimate, quantity_table, single_run
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, evidence_of, summary
from normless_papers.fixup.cifar import ERROR, Axis, draw_curves, draw_errors

# The settings of each method, with the paper's α of Mixup. The authors' code for ImageNet gives scalars a tenth of
# the learning rate, with and without Mixup (github.com/hongyi-zhang/Fixup, imagenet_train.py).
_TENTH: Mapping[str, Any] = {"scalar_rate_scale": 0.1}
PLAIN: Axis = {
    **{name: {"scheme": name, "mixup": 0.0} for name in ("batch_norm", "group_norm", "xavier")},
    "fixup": {"scheme": "fixup", "mixup": 0.0, **_TENTH},
}
EQUAL_RATES: Mapping[str, Any] = {"scheme": "fixup", "mixup": 0.7}
_MIXED: Axis = {
    "batch_norm + mixup (Zhang et al. 2017)": {"scheme": "batch_norm", "mixup": 0.2},
    "group_norm + mixup": {"scheme": "group_norm", "mixup": 0.1},
    "fixup + mixup": {**EQUAL_RATES, **_TENTH},
}
METHODS: Mapping[str, Axis] = {
    "resnet_50": {"batch_norm (Goyal et al. 2017)": PLAIN["batch_norm"], **_MIXED, "fixup": PLAIN["fixup"]},
    "resnet_101": {"batch_norm (Zhang et al. 2017)": PLAIN["batch_norm"], **_MIXED},
}
XAVIER_WEIGHTS = "Xavier's weights"
XAVIER_INIT = "xavier_init (Shang et al. 2017)"
EQUAL, TENTH = "mixup, equal rates", "mixup, scalars at 1/10"


def _trained(
    context: Context,
    *,
    effort: Effort,
    methods: Axis,
    rates: tuple[float, ...] | None = None,
    name: str = "ImageNet",
) -> TrainingSweeps:
    """Declare one network with some methods."""
    return effort.training(context, effort.sweep(context, name, {"method": methods}, rates=rates))


def _remarks(context: Context, effort: Effort) -> tuple[str, ...]:
    data = effort.data_in(context)
    return () if data == "image_folder" else (f"{data} replaces the paper's ImageNet.",)


def _both_networks(
    context: Context, *, efforts: Mapping[str, Effort], xavier_rates: tuple[float, ...]
) -> dict[str, TrainingSweeps]:
    trainings = {
        name: _trained(context, effort=own, methods=METHODS[name], name=name) for name, own in efforts.items()
    }
    xavier, own = {XAVIER_INIT: PLAIN["xavier"]}, efforts["resnet_50"]
    return trainings | {
        XAVIER_WEIGHTS: _trained(context, effort=own, methods=xavier, rates=xavier_rates, name="resnet_50")
    }


@artefact("fixup/table-2", basis="training", trains=_both_networks)
def test_errors(
    context: Context, runs: Mapping[str, Runs], *, efforts: Mapping[str, Effort], xavier_rates: tuple[float, ...]
) -> Evidence:
    xavier, small = runs[XAVIER_WEIGHTS], runs["resnet_50"]
    best = xavier.chosen(rate=xavier.best_rate(method=XAVIER_INIT)).assign(model="resnet_50")
    tables = [runs[name].table.assign(model=name) for name in efforts]
    columns = ("model", "method")
    table = pd.concat([*tables, best], ignore_index=True)
    measured = summary(table, (*columns, "rate"), ("test_error", "training_accuracy"))
    title, tried = "Test errors with and without Mixup", ", ".join(f"{rate:g}" for rate in xavier_rates)
    return evidence_of(
        runs,
        measured,
        lambda: draw_errors("fixup/table-2", measured, columns, title, f"top-1 {ERROR}"),
        facts={**runs, "resnet_50": replace(small, table=pd.concat([small.table, xavier.table], ignore_index=True))},
        on=columns,
        remarks=(
            f"Xavier's weights are shown at the best of the rates {tried} by test accuracy.",
            *_remarks(context, efforts["resnet_50"]),
        ),
    )


def _curves(
    context: Context,
    runs: Runs,
    effort: Effort,
    title: str,
    measured: Sequence[str],
    columns: Sequence[str] = ("test_accuracy",),
) -> Evidence:
    """Return the runs of several methods as evidence with their curves."""
    table = runs.summary(("method",), measured)
    remarks = _remarks(context, effort)
    return runs.evidence(table, lambda: draw_curves(runs, "method", title, columns), remarks=remarks)


_FIGURE_5 = {"BatchNorm": PLAIN["batch_norm"], "GroupNorm": PLAIN["group_norm"], "Fixup": PLAIN["fixup"]}


@artefact("fixup/figure-5", basis="training", trains=partial(_trained, methods=_FIGURE_5))
def overfitting(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    columns = ("test_accuracy", "training_accuracy")
    return _curves(context, runs, effort, "Without Mixup", ("training_accuracy", "test_error", "gap"), columns)


_FIGURE_6 = dict(zip(("BatchNorm + Mixup", "GroupNorm + Mixup", "Fixup + Mixup"), _MIXED.values(), strict=True))


@artefact("fixup/figure-6", basis="training", trains=partial(_trained, methods=_FIGURE_6))
def with_mixup(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    return _curves(context, runs, effort, "With Mixup", ("test_error", "training_accuracy"))


_SCALARS = {EQUAL: EQUAL_RATES, TENTH: _MIXED["fixup + mixup"]}


@artefact("fixup/scalar-lr", basis="training", trains=partial(_trained, methods=_SCALARS))
def scalar_rate(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    evidence = _curves(context, runs, effort, "The rate of scalars", ("test_error",))
    quantities: dict[str, Estimate | float] = {"lr_factor": _SCALARS[TENTH]["scalar_rate_scale"]}
    errors = {name: runs.final("test_error", method=name) for name in _SCALARS}
    if not runs.reduction:
        errors = {name: single_run(error.mean) if error.n == 1 else error for name, error in errors.items()}
    quantities |= {f"test error, {name}": error for name, error in errors.items()}
    return replace(evidence, measured=quantity_table(quantities), on=("quantity",))
