"""How deep networks train in the first epoch: figure 3, and which rule of Fixup it takes (section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.lab.rates import RateGrid
from normless.lab.sweep import Sweep
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import chosen, estimate, failures, final_table, setup_of, summary
from normless.papers.fixup.effort import DECAY_POLICY, RATE, wide_resnet_text
from normless.papers.trained import runs_do_not_train, runs_train
from normless.papers.verdict import Check, larger
from normless.report.sweeps import inks_of, optimum_against


@dataclass(frozen=True)
class Depth:
    """Networks of one depth.

    Attributes:
        layers: 6b + 4 of them.
        batch_size: images in a minibatch.
        replicates: runs of each method.
        data: another data set than the effort's, as text; None for that.
    """

    layers: int
    batch_size: int = 128
    replicates: int = 5
    data: str | None = None


@dataclass(frozen=True)
class Depths:
    """The networks that are trained for one epoch.

    Attributes:
        depths: in increasing order.
        data: the data set as text.
        reduced: why what depends on the paper's data may come out otherwise; empty where they are its.
    """

    depths: tuple[Depth, ...]
    data: str = "cifar10"
    reduced: str = ""


METHODS: Mapping[str, str] = {"sqrt(1/2)": "sqrt2", "LSUV": "lsuv", "BatchNorm": "batch_norm", "Fixup": "fixup"}
RULES: Mapping[str, str] = {
    "no rule": "none",
    "rule 2": "fixup(zero=False, multiplier=False, biases=False)",
    "rules 1 and 2": "fixup(multiplier=False, biases=False)",
    "rules 1 and 3": "fixup(rescale=False)",
    "Fixup": "fixup",
}
# Test accuracies so many points apart match, after an epoch.
_MATCH = 5.0
_LIMIT = 100


def _first_epochs(context: Context, schemes: Mapping[str, str], effort: Depths) -> tuple[SweepResult, ...]:
    """A result per depth: Wide-ResNets of width 1 after one epoch at rate 0.1."""
    return tuple(context.lab.run(_sweep(context, schemes, effort, depth)) for depth in effort.depths)


def _sweep(context: Context, schemes: Mapping[str, str], effort: Depths, depth: Depth) -> Sweep:
    base: dict[str, Any] = {
        "data": context.data_or(depth.data or effort.data),
        "data_root": context.data_root,
        "epochs": 1,
        "batch_size": depth.batch_size,
        "schedule": "constant",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "decay_policy": DECAY_POLICY,
    }
    axes = {
        "method": {name: {"scheme": scheme} for name, scheme in schemes.items()},
        "depth": {str(depth.layers): {"model": wide_resnet_text(depth.layers, 1)}},
    }
    grid = RateGrid((RATE,), None)
    return Sweep(f"depth {depth.layers}", base, axes, grid, depth.replicates, depth.replicates, context.seed)


def _table(results: Sequence[SweepResult]) -> pd.DataFrame:
    table = pd.concat([final_table(result) for result in results], ignore_index=True)
    return table.assign(depth=table["depth"].astype(int))


def _draw(measured: pd.DataFrame, schemes: Mapping[str, str], title: str) -> Axes:
    optima = measured.assign(
        mean=measured["test_accuracy"],
        deviation=measured["test_accuracy_deviation"],
        trainable=measured["trained"] == measured["n"],
    )
    return optimum_against(
        optima,
        series="method",
        across="depth",
        inks=inks_of(schemes),
        title=title,
        up="test accuracy (%) after an epoch; hollow: not trained",
    )


def _setup(context: Context, results: Sequence[SweepResult], effort: Depths) -> dict[str, Any]:
    setup = setup_of(context.lab, *results)
    setup |= {"network": "Wide-ResNets of width 1", "data of depths up to the last but one": effort.data}
    setup["depths"] = [
        f"{one.layers} layers: minibatches of {one.batch_size}, {one.replicates} runs of each method"
        + (f", {one.data}" if one.data else "")
        for one in effort.depths
    ]
    return {
        name: value for name, value in setup.items() if name not in ("depth", "batch_size", "replicates", "seeds")
    }


@artefact("fixup/figure-3", basis="training")
def first_epoch(context: Context, *, effort: Depths) -> Evidence:
    """Figure 3: after an epoch at rate 0.1 Fixup matches batch norm to 10,000 layers; LSUV and √½ fail past 100."""
    results = _first_epochs(context, METHODS, effort)
    table = _table(results)
    checks: list[Check] = []
    for layers in sorted(table["depth"].unique()):
        runs = {name: chosen(table, method=name, depth=layers) for name in METHODS}
        checks += [runs_train(f"{name} trains at {layers} layers.", runs[name]) for name in ("Fixup", "BatchNorm")]
        checks.append(
            larger(
                f"At {layers} layers Fixup's test accuracy is at most {_MATCH:g} points below batch norm's.",
                estimate(runs["Fixup"], "test_accuracy"),
                estimate(runs["BatchNorm"], "test_accuracy"),
                by=-_MATCH,
            )
        )
        if layers > _LIMIT:
            checks += [
                runs_do_not_train(f"{name} cannot be trained at {layers} layers.", runs[name])
                for name in ("LSUV", "sqrt(1/2)")
            ]
    measured = summary(table, ("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured,
        qualified(checks, effort.reduced),
        _setup(context, results, effort),
        draw=lambda: _draw(measured, METHODS, "The first epoch at rate 0.1"),
        remarks=("Of single runs the error is not known.", *failures(*results)),
    )


@artefact("fixup/rule-2", basis="training")
def rules(context: Context, *, effort: Depths) -> Evidence:
    """Section 3: rule 2 alone trains networks of any depth at rate 0.1, and without it they do not train."""
    results = _first_epochs(context, RULES, effort)
    table = _table(results)
    checks: list[Check] = []
    for layers in sorted(table["depth"].unique()):
        runs = {name: chosen(table, method=name, depth=layers) for name in RULES}
        checks.append(runs_train(f"Rule 2 alone trains {layers} layers.", runs["rule 2"]))
        if layers > _LIMIT:
            checks += [
                runs_do_not_train(f"With {name} {layers} layers cannot be trained.", runs[name])
                for name in ("no rule", "rules 1 and 3")
            ]
        checks.append(
            larger(
                f"At {layers} layers rules 1 and 3 improve on rule 2 alone: Fixup's test accuracy is higher.",
                estimate(runs["Fixup"], "test_accuracy"),
                estimate(runs["rule 2"], "test_accuracy"),
            )
        )
    measured = summary(table, ("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured,
        qualified(checks, effort.reduced),
        _setup(context, results, effort),
        draw=lambda: _draw(measured, RULES, "Rules of Fixup in the first epoch"),
        remarks=(
            "Rule 1 is the zero start, rule 2 the scale of the branches, rule 3 multipliers and biases. That rule 2 "
            "is necessary is contradicted by zeroinit/table-3, where a multiplier at zero does without.",
            *failures(*results),
        ),
    )
