"""Fixup on ImageNet: test errors (table 2), curves (figures 5 and 6), the learning rate of scalars (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import (
    Claim,
    Estimate,
    at_scale,
    difference,
    larger,
    near,
    quantity_table,
    single_run,
)
from normless_papers.claims.training import chance_of, trains
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, evidence_of, summary
from normless_papers.fixup.cifar import ERROR, Axis, best_rate, draw_curves, draw_errors

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


def _known_error(estimate: Estimate, runs: Runs, name: str) -> Estimate:
    """Give a single run of the paper's set-up the known deviation of runs on ImageNet."""
    known = not runs.reduction and estimate.n == 1
    return replace(single_run(estimate.mean) if known else estimate, name=name)


def _final(runs: Runs, column: str, method: str, **labels: Any) -> Estimate:
    return _known_error(runs.final(column, method=method, **labels), runs, method)


def _remarks(context: Context, effort: Effort) -> tuple[str, ...]:
    data = effort.data_in(context)
    return () if data == "image_folder" else (f"{data} replaces the paper's ImageNet.",)


def _table_2(runs: Mapping[str, Runs]) -> list[Claim]:
    small, xavier_runs = runs["resnet_50"], runs[XAVIER_WEIGHTS]
    norm, fixup, mixup = (
        _final(small, "test_error", name) for name in ("batch_norm (Goyal et al. 2017)", "fixup", "fixup + mixup")
    )
    xavier = _final(xavier_runs, "test_error", XAVIER_INIT, rate=best_rate(xavier_runs, XAVIER_INIT))
    # In the paper they are 0.1 and 0 points apart.
    on_par = "with Fixup and Mixup is less than 0.5 points above that with group norm and Mixup."
    return [
        larger("Fixup has a lower test error of ResNet-50 than Xavier's weights.", xavier, fixup),
        larger("Fixup has a higher test error of ResNet-50 than batch norm.", fixup, norm),
        larger("Mixup lowers Fixup's test error of ResNet-50.", fixup, mixup),
        *(
            at_scale(
                larger(
                    f"The test error of {name} {on_par}",
                    *(_final(runs[key], "test_error", method) for method in ("group_norm + mixup", "fixup + mixup")),
                    by=-0.5,
                ),
                small.reduction,
            )
            for name, key in (("ResNet-50", "resnet_50"), ("ResNet-101", "resnet_101"))
        ),
    ]


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


@artefact("fixup/table-2", basis="training", checks=_table_2, trains=_both_networks)
def test_errors(
    context: Context, runs: Mapping[str, Runs], *, efforts: Mapping[str, Effort], xavier_rates: tuple[float, ...]
) -> Evidence:
    xavier = runs[XAVIER_WEIGHTS]
    best = xavier.chosen(rate=best_rate(xavier, XAVIER_INIT)).assign(model="resnet_50")
    tables = [runs[name].table.assign(model=name) for name in efforts]
    columns = ("model", "method")
    table = pd.concat([*tables, best], ignore_index=True)
    measured = summary(table, (*columns, "rate"), ("test_error", "training_accuracy"))
    title, tried = "Test errors with and without Mixup", ", ".join(f"{rate:g}" for rate in xavier_rates)
    return evidence_of(
        runs,
        measured,
        lambda: draw_errors("fixup/table-2", measured, columns, title, f"top-1 {ERROR}"),
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


def _figure_5(runs: Runs) -> list[Claim]:
    claims = {
        "training_accuracy": "Fixup's training error ends below that of {}.",
        "test_error": "Fixup's test error ends above that of {}.",
    }
    return [
        larger(claim.format(norm), *(_final(runs, column, method) for method in ("Fixup", norm)))
        for norm in ("BatchNorm", "GroupNorm")
        for column, claim in claims.items()
    ]


_FIGURE_5 = {"BatchNorm": PLAIN["batch_norm"], "GroupNorm": PLAIN["group_norm"], "Fixup": PLAIN["fixup"]}


@artefact("fixup/figure-5", basis="training", checks=_figure_5, trains=partial(_trained, methods=_FIGURE_5))
def overfitting(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    columns = ("test_accuracy", "training_accuracy")
    return _curves(context, runs, effort, "Without Mixup", ("training_accuracy", "test_error", "gap"), columns)


def _figure_6(runs: Runs) -> list[Claim]:
    accuracy, control = (
        _known_error(runs.accuracy(method=name), runs, name) for name in ("Fixup + Mixup", "BatchNorm + Mixup")
    )
    group, fixup = (_final(runs, "test_error", name) for name in ("GroupNorm + Mixup", "Fixup + Mixup"))
    # In the paper they are 0.1 points apart.
    close = near("Fixup's test error is at most 0.5 points from group norm's.", difference(fixup, group), 0, 0.5)
    return [
        trains("With Mixup Fixup trains at the rate of batch norm.", accuracy, control, chance_of(runs.table)),
        at_scale(close, runs.reduction),
    ]


_FIGURE_6 = dict(zip(("BatchNorm + Mixup", "GroupNorm + Mixup", "Fixup + Mixup"), _MIXED.values(), strict=True))


@artefact("fixup/figure-6", basis="training", checks=_figure_6, trains=partial(_trained, methods=_FIGURE_6))
def with_mixup(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    return _curves(context, runs, effort, "With Mixup", ("test_error", "training_accuracy"))


def _scalar_rate(runs: Runs) -> list[Claim]:
    claim = "With Mixup the test error is lower with a tenth of the rate for scalars."
    return [larger(claim, *(_final(runs, "test_error", name) for name in (EQUAL, TENTH)))]


_SCALARS = {EQUAL: EQUAL_RATES, TENTH: _MIXED["fixup + mixup"]}


@artefact("fixup/scalar-lr", basis="training", checks=_scalar_rate, trains=partial(_trained, methods=_SCALARS))
def scalar_rate(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    evidence = _curves(context, runs, effort, "The rate of scalars", ("test_error",))
    quantities: dict[str, Estimate | float] = {"lr_factor": _SCALARS[TENTH]["scalar_rate_scale"]}
    quantities |= {f"test error, {name}": _final(runs, "test_error", name) for name in _SCALARS}
    return replace(evidence, measured=quantity_table(quantities), on=("quantity",))
