"""How deep networks train in the first epoch: figure 3, and which rule of Fixup it takes (section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import inks_of, optimum_against
from normless.sweeps import RateGrid, Sweep, SweepResult, axes_as_printed
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, larger
from normless_papers.run_summary import failures, final_table, setup_of
from normless_papers.runs import chosen, summary
from normless_papers.trained import best_accuracy, runs_do_not_train, runs_train
from normless_papers.fixup.effort import DECAY_POLICY, RATE, wide_resnet_text


@dataclass(frozen=True)
class Depth:
    """Networks of one depth.

    Attributes:
        layers: 6b + 4 of them.
        batch_size: images in a minibatch.
        replicates: runs of each method.
        epochs: of each run, at a constant rate.
        data: another data set than the effort's, as text; None for that.
    """

    layers: int
    batch_size: int = 128
    replicates: int = 5
    epochs: int = 1
    data: str | None = None


@dataclass(frozen=True)
class Depths:
    """The networks that are trained.

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
    "BatchNorm": "batch_norm",
    "no rule": "none",
    "rule 2": "fixup(zero=False, multiplier=False, biases=False)",
    "rules 1 and 2": "fixup(multiplier=False, biases=False)",
    "rules 1 and 3": "fixup(rescale=False)",
    "Fixup": "fixup",
}
# Test accuracies so many points apart match, after the first epochs.
_MATCH = 5.0
LIMIT = 100
# Of the possible gain, what makes batch norm a control: after the paper's single epoch it has less than half of it.
_LEAST = 0.25


def first_epochs(context: Context, schemes: Mapping[str, str], effort: Depths) -> tuple[SweepResult, ...]:
    """A result per depth: Wide-ResNets of width 1 after the first epochs at rate 0.1."""
    return tuple(context.lab.run(_sweep(context, schemes, effort, depth)) for depth in effort.depths)


def _sweep(context: Context, schemes: Mapping[str, str], effort: Depths, depth: Depth) -> Sweep:
    base: dict[str, Any] = {
        "data": context.data_or(depth.data or effort.data),
        "data_root": context.data_root,
        "epochs": depth.epochs,
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
    return Sweep(
        f"depth {depth.layers}", base, axes_as_printed(axes), grid, depth.replicates, depth.replicates, context.seed
    )


def runs_of(results: Sequence[SweepResult]) -> pd.DataFrame:
    """A row per run, as in `final_table`; depths are numbers."""
    table = pd.concat([final_table(result) for result in results], ignore_index=True)
    return table.assign(depth=table["depth"].astype(int))


def depths_of(table: pd.DataFrame, *, above: int = 0) -> list[int]:
    """The numbers of layers above a limit, in increasing order."""
    return sorted(int(layers) for layers in table["depth"].unique() if layers > above)


def deep_does_not_train(table: pd.DataFrame, method: str, what: str) -> list[Check]:
    """Beyond 100 layers a method does not train where batch norm does.

    Args:
        table: see `runs_of`, with batch norm at the same depths.
        method: in the table.
        what: the method, as the claim starts with it.
    """
    return [
        runs_do_not_train(
            f"{what} {layers} layers cannot be trained at rate {RATE:g}, where batch norm trains.",
            chosen(table, method=method, depth=layers),
            chosen(table, method="BatchNorm", depth=layers),
            least=_LEAST,
        )
        for layers in depths_of(table, above=LIMIT)
    ]


def trains_as_batch_norm(table: pd.DataFrame, method: str, what: str, *, above: int = 0) -> list[Check]:
    """At every depth above a limit a method trains at batch norm's rate; see `deep_does_not_train`."""
    return [
        runs_train(
            f"{what} {layers} layers are trained at rate {RATE:g}, as batch norm's are.",
            chosen(table, method=method, depth=layers),
            chosen(table, method="BatchNorm", depth=layers),
            least=_LEAST,
        )
        for layers in depths_of(table, above=above)
    ]


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
        up="test accuracy (%) after the first epochs; hollow: not trained",
    )


def setup_of_depths(context: Context, results: Sequence[SweepResult], effort: Depths) -> dict[str, Any]:
    """How the runs were made."""
    left_out = ("depth", "batch_size", "replicates", "seeds", "epochs")
    setup = {name: value for name, value in setup_of(context.lab, *results).items() if name not in left_out}
    depths = [
        f"{one.layers} layers: {one.epochs} epochs, minibatches of {one.batch_size}, {one.replicates} runs of each "
        f"method, {context.data_or(one.data or effort.data)}"
        for one in effort.depths
    ]
    return setup | {"network": "Wide-ResNets of width 1", "depths": depths}


def _figure_3(table: pd.DataFrame) -> list[Check]:
    shallow, *deeper = depths_of(table)
    batch_norm = {layers: chosen(table, method="BatchNorm", depth=layers) for layers in (shallow, *deeper)}
    return [
        *trains_as_batch_norm(table, "Fixup", "With Fixup"),
        *(
            runs_train(
                f"With batch norm {layers} layers are trained, as {shallow} are.",
                batch_norm[layers], batch_norm[shallow], least=_LEAST,
            )
            for layers in deeper
        ),
        *(
            larger(
                f"At {layers} layers Fixup's test accuracy is at most {_MATCH:g} points below batch norm's.",
                best_accuracy(chosen(table, method="Fixup", depth=layers)),
                best_accuracy(batch_norm[layers]),
                by=-_MATCH,
            )
            for layers in batch_norm
        ),
        *(
            one
            for name, what in (("LSUV", "With LSUV"), ("sqrt(1/2)", "With sums times √½"))
            for one in deep_does_not_train(table, name, what)
        ),
    ]  # fmt: skip


@artefact("fixup/figure-3", basis="training", checks=_figure_3)
def first_epoch(context: Context, *, effort: Depths) -> Evidence:
    """Figure 3: after an epoch at rate 0.1 Fixup matches batch norm to 10,000 layers; LSUV and √½ fail past 100."""
    results = first_epochs(context, METHODS, effort)
    table = runs_of(results)
    measured = summary(table, ("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured,
        table,
        setup_of_depths(context, results, effort),
        draw=lambda: _draw(measured, METHODS, "The first epochs at rate 0.1"),
        remarks=(
            "Of single runs the error is not known. Of batch norm a quarter of the possible gain is enough to "
            "compare with: after the paper's one epoch it has less than half.",
            *failures(*results),
        ),
        reduction=effort.reduced,
    )


def _rule_2(table: pd.DataFrame) -> list[Check]:
    return [
        *trains_as_batch_norm(table, "rule 2", "By rule 2 alone"),
        *deep_does_not_train(table, "no rule", "Without any rule"),
        *deep_does_not_train(table, "rules 1 and 3", "By rules 1 and 3, without rule 2,"),
        *(
            larger(
                f"At {layers} layers rules 1 and 3 improve on rule 2 alone: Fixup's test accuracy is higher.",
                best_accuracy(chosen(table, method="Fixup", depth=layers)),
                best_accuracy(chosen(table, method="rule 2", depth=layers)),
            )
            for layers in depths_of(table)
        ),
    ]


@artefact("fixup/rule-2", basis="training", checks=_rule_2)
def rules(context: Context, *, effort: Depths) -> Evidence:
    """Section 3: rule 2 alone trains networks of any depth at rate 0.1, and without it they do not train."""
    results = first_epochs(context, RULES, effort)
    table = runs_of(results)
    measured = summary(table, ("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured,
        table,
        setup_of_depths(context, results, effort),
        draw=lambda: _draw(measured, RULES, "Rules of Fixup in the first epochs"),
        remarks=(
            "Rule 1 is the zero start, rule 2 the scale of the branches, rule 3 multipliers and biases. That rule 2 "
            "is necessary is contradicted by zeroinit/table-3, where a multiplier at zero does without.",
            *failures(*results),
        ),
        reduction=effort.reduced,
    )
