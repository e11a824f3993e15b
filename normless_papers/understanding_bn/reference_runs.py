"""Bjorck et al., reference runs: figure 1, and batch norm only at the top (section 3.1, appendix G)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from normless_lab.plots import Ink, accuracy_against_epoch, series_ink
from normless_lab.train import WINDOW
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Seeds
from normless_papers.claims import (
    Claim,
    Estimate,
    combined,
    exceeds,
    larger,
    not_asked,
    over_draws,
    quantity_table,
    replicates,
    stated,
)
from normless_papers.claims.training import LEAST
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.networks.seeded_inputs import MeasuredBatch, convert, seeded, training_batch
from normless_papers.understanding_bn.rate_search import SCHEMES

AXIS = "configuration"
# The scheme of each run, and its training among the effort's variants.
CONFIGURATIONS: Mapping[str, tuple[str, str]] = {
    "no norm, low rate": ("none", "low"),
    "batch norm, low rate": ("batch norm", "low"),
    "batch norm, middle rate": ("batch norm", "middle"),
    "batch norm, high rate": ("batch norm", "high"),
    "batch norm on top": ("batch norm on top", "top"),
}
NONE, LOW, MIDDLE, HIGH, TOP = CONFIGURATIONS
# Test accuracies are equally good if they differ by at most this, in percentage points.
_NO_BETTER = 1.0
# Learning has plateaued if the training accuracy rises by less, in percentage points.
_RISE = 1.0
_SCALED = ("none", "batch norm", "batch norm on top")


def reference_runs(context: Context, *, effort: Effort, names: Sequence[str], **_: Any) -> TrainingSweeps:
    """Declare those of some reference runs of the paper that the effort trains."""
    axis = {
        name: {"scheme": SCHEMES[scheme], **effort.variants[training]}
        for name, (scheme, training) in CONFIGURATIONS.items()
        if name in names and training in effort.variants
    }
    return effort.training(context, effort.sweep(context, "reference runs", {AXIS: axis}))


def with_plateaus(runs: Runs) -> Runs:
    """Add the column `plateaued`, as in `plateaus`."""
    return replace(runs, table=runs.table.assign(plateaued=runs.table["hash"].map(plateaus(runs.epochs))))


def plateaus(epochs: pd.DataFrame) -> dict[str, bool]:
    """Return by run whether its training accuracy no longer rises before the first drop of its rate.

    "We divide the learning rate by 10 after epoch 50% and 75%, at which point learning has typically plateaued" gives
    no rule. This one is ours: with windows of w = ⌈epochs at the initial rate / 10⌉ epochs, the mean of the last
    window is less than 1 point above that of the previous window.
    """
    flags = {}
    for name, rows in epochs.groupby("hash") if len(epochs) else ():
        first = rows.sort_values("epoch")
        accuracy = 100 * first[first["epoch_rate"] >= first["epoch_rate"].max()]["training_accuracy"].to_numpy(float)
        if len(accuracy) < 2:
            continue
        width = min(math.ceil(WINDOW * len(accuracy)), len(accuracy) // 2)
        rise = float(accuracy[-width:].mean() - accuracy[-2 * width : -width].mean())
        flags[str(name)] = rise < _RISE
    return flags


def _at_plateau(runs: Runs, comparison: Claim, *names: str) -> Claim:
    """Leave a comparison of configurations undecided if learning was cut short in one of their runs."""
    whole = runs.table[runs.table[AXIS].isin(names)]["plateaued"].eq(True).all()
    return comparison if whole else not_asked(comparison, "learning had not plateaued when the rate was lowered")


def _evidence(runs: Runs, measured: pd.DataFrame, title: str, columns: Sequence[str], **more: Any) -> Evidence:
    """Return the runs as evidence, with the curves of some columns."""
    inks: dict[str, Ink] = {name: series_ink(place) for place, name in enumerate(CONFIGURATIONS)}
    return runs.evidence(
        measured,
        lambda: accuracy_against_epoch(runs.epochs, series=AXIS, inks=inks, title=title, columns=columns),
        **more,
    )


def _figure_1(runs: Runs) -> list[Claim]:
    accuracy, gap, loss = (runs.finals(name, AXIS) for name in ("test_accuracy", "gap", "training_loss"))
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
    against, unnormalized = {AXIS: HIGH}, dict[str, Any]({AXIS: NONE})
    if runs.trains("It trains.", against=against, least=LEAST, **unnormalized).verdict != "holds":
        low = [not_asked(check, "the unnormalized network did not train at the low rate") for check in low]
    checks = [_at_plateau(runs, check, NONE, LOW) for check in low]
    words = {LOW: "low", MIDDLE: "middle", HIGH: "high"}
    for lower, higher in pairwise(name for name in words if name in runs.labels(AXIS)):
        tests = {
            f"With batch norm the {words[higher]} rate reaches a higher test accuracy than the {words[lower]} "
            "one.": exceeds(accuracy[higher], accuracy[lower]),
            f"With batch norm the gap of training and test accuracy is larger at the {words[lower]} rate than the "
            f"{words[higher]} one.": exceeds(gap[lower], gap[higher]),
        }
        checks += [_at_plateau(runs, check, lower, higher) for check in stated(tests)]
    return checks


_RATES, _TOPS = (partial(reference_runs, names=names) for names in ((NONE, LOW, MIDDLE, HIGH), (NONE, HIGH, TOP)))


@artefact("understanding-bn/figure-1", basis="training", checks=_figure_1, trains=_RATES)
def learning_rates(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    runs = with_plateaus(runs)
    columns = ("test_accuracy", "training_accuracy", "gap", "training_loss")
    measured = runs.summary((AXIS, "rate", "epochs"), columns)
    return _evidence(runs, measured, "Batch norm and learning rates", columns[:2])


def _bn_on_top(facts: tuple[Runs, Mapping[str, Estimate]]) -> list[Claim]:
    """Check the runs, and log₁₀ of the gradients' norm at initialization by network."""
    runs, scales = facts
    accuracy = runs.finals("test_accuracy", AXIS)
    unnormalized, full, top = (scales[name] for name in _SCALED)
    two_thirds = combined([(1 / 3, accuracy[NONE]), (2 / 3, accuracy[HIGH])])
    claim = "Its test accuracy is above two thirds of the way from the unnormalized to the normalized network's."
    recovered = larger(claim, accuracy[TOP], two_thirds)
    # Without a gain from batch norm there is no share of it.
    if larger("Batch norm gains.", accuracy[HIGH], accuracy[NONE]).verdict != "holds":
        recovered = replace(recovered, verdict="inconclusive")
    nearer = (
        "At initialization the gradients' norm is nearer that of the fully normalized network than that of the "
        "unnormalized network (in decades)."
    )
    trains = "It trains at the learning rate 0.03, or its substitute."
    return [
        larger(nearer, _distance(top, unnormalized), _distance(top, full)),
        runs.trains(trains, against={AXIS: HIGH}, **dict[str, Any]({AXIS: TOP})),
        _at_plateau(runs, recovered, NONE, HIGH, TOP),
    ]


def _distance(first: Estimate, second: Estimate) -> Estimate:
    """Estimate |first - second| over draws."""
    return over_draws(abs(value - second.by_seed[seed]) for seed, value in first.by_seed.items())


@artefact("understanding-bn/bn-on-top", basis="training", checks=_bn_on_top, trains=_TOPS)
def norm_on_top(context: Context, runs: Runs, *, effort: Effort, batch_size: int, draws: Seeds[int]) -> Evidence:
    runs = with_plateaus(runs)
    batch = training_batch(context, effort.data, batch_size)
    seeds = range(context.seed, context.seed + draws)
    scales = {
        name: replicates(pd.Series({seed: _gradient_scale(batch, SCHEMES[name], seed) for seed in seeds}))
        for name in _SCALED
    }
    accuracy = runs.finals("test_accuracy", AXIS)
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
    title = "Batch norm on top only"
    return _evidence(runs, quantity_table(quantities), title, ("test_accuracy",), facts=(runs, scales))


def _gradient_scale(batch: MeasuredBatch, scheme: str, seed: int) -> float:
    """Return log₁₀ of the norm of the cross entropy's gradient by all convolutions' weights in the blocks.

    The network is a ResNet-110 at any effort, as norms decide the norm's size at that depth.
    """
    with seeded(seed):
        model = convert(batch.network("normless:resnet_cifar(depth=110)"), scheme, batch.inputs).train()
    weights = [weight for path, weight in model.named_parameters() if "blocks." in path and weight.dim() == 4]
    loss = F.cross_entropy(model(batch.inputs), batch.targets)
    squares = [gradient.double().square().sum() for gradient in torch.autograd.grad(loss, weights)]
    return 0.5 * math.log10(float(torch.stack(squares).sum()))


@artefact("understanding-bn/figure-15", basis="training", trains=_TOPS)
def training_accuracy_on_top(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    runs, columns = with_plateaus(runs), ("training_accuracy",)
    measured = runs.summary((AXIS, "rate", "epochs"), columns)
    return _evidence(runs, measured, "Training with batch norm on top only", columns)


@artefact("understanding-bn/figure-16", basis="training", trains=_TOPS)
def test_accuracy_on_top(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    runs = with_plateaus(runs)
    accuracy = runs.finals("test_accuracy", AXIS)
    quantities = {"final_test_accuracy": accuracy.pop(TOP)}
    measured = quantity_table(quantities | {f"test accuracy, {name}": value for name, value in accuracy.items()})
    title = "Test accuracy with batch norm on top only"
    return _evidence(runs, measured, title, ("test_accuracy",))
