"""Deep networks in the first epoch: Fixup, figure 3, and the rule that makes them trainable (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from normless.spec import parse_call
from normless_lab.plots import inks_of, optimum_against
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Claim, larger
from normless_papers.claims.training import LEAST
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.fixup.cifar import RATE

METHODS: Mapping[str, str] = {"sqrt(1/2)": "sqrt2", "LSUV": "lsuv", "BatchNorm": "batch_norm", "Fixup": "fixup"}
RULES: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "no rule": "none",
    "rule 2": "fixup(zero=False, multiplier=False, biases=False)",
    "rules 1 and 2": "fixup(multiplier=False, biases=False)",
    "rules 1 and 3": "fixup(rescale=False)",
    "Fixup": "fixup",
}
# Test accuracies after the first epochs match if they differ by less than this, in percentage points.
_MATCH = 5.0
LIMIT = 100
_BATCH_NORM = {"method": "BatchNorm"}


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


def depths_of(runs: Runs, above: int = 0) -> list[int]:
    """Return the depths above a limit, in increasing order."""
    return sorted(int(layers) for layers in runs.labels("depth") if layers > above)


def deep_does_not_train(runs: Runs, method: str, subject: str) -> list[Claim]:
    """Check that beyond 100 layers a method does not train where batch norm does; `subject` starts the claim."""
    claim = f"{subject} {{}} layers cannot be trained at rate {RATE:g}, where batch norm trains."
    return _at_depths(runs, runs.does_not_train, method, claim, depths_of(runs, LIMIT))


def trains_as_batch_norm(runs: Runs, method: str, subject: str, above: int = 0) -> list[Claim]:
    """Check that at every depth above a limit a method trains at batch norm's rate; see `deep_does_not_train`."""
    claim = f"{subject} {{}} layers are trained at rate {RATE:g}, as batch norm's are."
    return _at_depths(runs, runs.trains, method, claim, depths_of(runs, above))


def trains_to_the_limit(runs: Runs, method: str, subject: str) -> list[Claim]:
    """Check that up to 100 layers a method trains at batch norm's rate, if it is "past 100 layers" that it fails."""
    claim = f"{subject} {{}} layers are still trained at rate {RATE:g}."
    return _at_depths(runs, runs.trains, method, claim, [layers for layers in depths_of(runs) if layers <= LIMIT])


def _at_depths(
    runs: Runs, decided: Callable[..., Claim], method: str, claim: str, depths: Sequence[int]
) -> list[Claim]:
    """Make a check at each depth, against batch norm at the same depth."""
    checks = []
    for layers in depths:
        labels = {"method": method, "depth": layers}
        checks.append(decided(claim.format(layers), against=labels | _BATCH_NORM, least=LEAST, **labels))
    return checks


def _above(runs: Runs, claim: str, first: str, second: str, by: float = 0.0) -> list[Claim]:
    """Check at every depth that the first method is more accurate; `claim` is a format with the depth."""
    return [
        larger(claim.format(layers), *(runs.accuracy(method=name, depth=layers) for name in (first, second)), by=by)
        for layers in depths_of(runs)
    ]


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


def _figure_3(runs: Runs) -> list[Claim]:
    shallow, *deeper = depths_of(runs)
    control = {"method": "BatchNorm", "depth": shallow}
    trained = f"With batch norm {{}} layers are trained, as {shallow} are."
    near = f"At {{}} layers Fixup's test accuracy is less than {_MATCH:g} points below batch norm's."
    return [
        *trains_as_batch_norm(runs, "Fixup", "With Fixup"),
        *(
            runs.trains(trained.format(layers), against=control, least=LEAST, method="BatchNorm", depth=layers)
            for layers in deeper
        ),
        *_above(runs, near, "Fixup", "BatchNorm", by=-_MATCH),
        # "LSUV and √½-scaling are not able to train with the same learning rate as BatchNorm past 100 layers."
        *(
            check
            for method, subject in (("LSUV", "With LSUV"), ("sqrt(1/2)", "With sums times √½"))
            for checked in (trains_to_the_limit, deep_does_not_train)
            for check in checked(runs, method, subject)
        ),
    ]


@artefact("fixup/figure-3", basis="training", checks=_figure_3, trains=first_epochs(METHODS))
def first_epoch(context: Context, runs: Runs, *, efforts: Sequence[Effort]) -> Evidence:
    return _evidence(runs, efforts, METHODS, "The first epochs at rate 0.1")


def _rule_2(runs: Runs) -> list[Claim]:
    better = "At {} layers rules 1 and 3 improve on rule 2 alone: Fixup's test accuracy is higher."
    return [
        *trains_as_batch_norm(runs, "rule 2", "By rule 2 alone"),
        *deep_does_not_train(runs, "no rule", "Without any rule"),
        *deep_does_not_train(runs, "rules 1 and 3", "By rules 1 and 3, without rule 2,"),
        *_above(runs, better, "Fixup", "rule 2"),
    ]


@artefact("fixup/rule-2", basis="training", checks=_rule_2, trains=first_epochs(RULES))
def rules(context: Context, runs: Runs, *, efforts: Sequence[Effort]) -> Evidence:
    return _evidence(runs, efforts, RULES, "Rules of Fixup in the first epochs")
