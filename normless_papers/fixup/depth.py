"""Deep networks in the first epoch: Fixup, figure 3, and the rule that makes them trainable (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from normless.spec import parse_call
from normless_lab.plots import inks_of, optimum_against
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs

METHODS: Mapping[str, str] = {"sqrt(1/2)": "sqrt2", "LSUV": "lsuv", "BatchNorm": "batch_norm", "Fixup": "fixup"}
RULES: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "no rule": "none",
    "rule 2": "fixup(zero=False, multiplier=False, biases=False)",
    "rules 1 and 3": "fixup(rescale=False)",
    "Fixup": "fixup",
}


def first_epochs(schemes: Mapping[str, str]) -> Callable[..., TrainingSweeps]:
    """Declare Wide-ResNets of width 1 in the first epochs at rate 0.1, a sweep per depth; axes `method`, `depth`."""
    methods = {name: {"scheme": scheme} for name, scheme in schemes.items()}

    def trains(context: Context, *, efforts: Sequence[Effort], **_: Any) -> TrainingSweeps:
        sweeps = []
        for effort in efforts:
            layers = str(parse_call(effort.model.partition(":")[2])[1]["depth"])
            axes = {"method": methods, "depth": {layers: {"model": effort.model}}}
            sweeps.append(effort.sweep(context, f"depth {layers}", axes))
        return efforts[0].training(context, *sweeps)

    return trains


def _evidence(runs: Runs, efforts: Sequence[Effort], schemes: Mapping[str, str], title: str) -> Evidence:
    measured = runs.summary(("method", "depth"), ("test_accuracy",))

    def draw() -> Axes:
        optima = measured.rename(columns={"test_accuracy": "mean", "test_accuracy_deviation": "deviation"})
        optima["trainable"] = measured["trained"] == measured["n"]
        up = "test accuracy (%) after the first epochs; hollow: not trained"
        return optimum_against(
            optima, series="method", across="depth", inks=inks_of(schemes), title=title, y_label=up
        )

    return runs.evidence(measured, draw, setup=setup_of(runs, efforts))


def setup_of(runs: Runs, efforts: Iterable[Effort]) -> dict[str, object]:
    """Describe the runs of `first_epochs`."""
    varying = ("depth", "batch_size", "replicates", "best", "seeds", "epochs")
    setup = {name: value for name, value in runs.setup.items() if name not in varying}
    depths = [
        f"{effort.model}: {effort.epochs} epochs, minibatches of {effort.batch_size}, "
        f"{effort.replicates} runs of each method, {effort.data}"
        for effort in efforts
    ]
    return setup | {"depths": depths}


@artefact("fixup/figure-3", basis="training", trains=first_epochs(METHODS))
def first_epoch(context: Context, runs: Runs, *, efforts: Sequence[Effort]) -> Evidence:
    return _evidence(runs, efforts, METHODS, "The first epochs at rate 0.1")


@artefact("fixup/rule-2", basis="training", trains=first_epochs(RULES))
def rules(context: Context, runs: Runs, *, efforts: Sequence[Effort]) -> Evidence:
    return _evidence(runs, efforts, RULES, "Rules of Fixup in the first epochs")
