"""Deep networks in the first epoch: figure 3, and the rule of Fixup that lets them train (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.axes import Axes

from normless.plots import inks_of, optimum_against
from normless.spec import parse_call
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, larger
from normless_papers.effort import Effort
from normless_papers.fixup.cifar import RATE
from normless_papers.runs import Runs, carry_out

METHODS: Mapping[str, str] = {"sqrt(1/2)": "sqrt2", "LSUV": "lsuv", "BatchNorm": "batch_norm", "Fixup": "fixup"}
RULES: Mapping[str, str] = {
    "BatchNorm": "batch_norm",
    "no rule": "none",
    "rule 2": "fixup(zero=False, multiplier=False, biases=False)",
    "rules 1 and 2": "fixup(multiplier=False, biases=False)",
    "rules 1 and 3": "fixup(rescale=False)",
    "Fixup": "fixup",
}
# Test accuracies that differ by less than this, in points, match after the first epochs.
_MATCH = 5.0
LIMIT = 100
# Share of the possible gain that a control needs: after the paper's single epoch batch norm has less than half.
_LEAST = 0.25


def first_epochs(context: Context, schemes: Mapping[str, str], efforts: Sequence[Effort]) -> Runs:
    """Wide-ResNets of width 1 after the first epochs at rate 0.1, a sweep per depth; axes `method` and `depth`."""
    methods = {name: {"scheme": scheme} for name, scheme in schemes.items()}
    sweeps = []
    for effort in efforts:
        layers = str(parse_call(effort.model.partition(":")[2])[1]["depth"])
        axes = {"method": methods, "depth": {layers: {"model": effort.model}}}
        sweeps.append(effort.sweep(context, f"depth {layers}", axes))
    return carry_out(context, *sweeps, reduction=efforts[0].reduction(context))


def depths_of(runs: Runs, above: int = 0) -> list[int]:
    """The numbers of layers above a limit, in increasing order."""
    return sorted(int(layers) for layers in runs.labels("depth") if layers > above)


def deep_does_not_train(runs: Runs, method: str, what: str) -> list[Check]:
    """Whether beyond 100 layers a method does not train where batch norm does; `what` names it in the claim."""
    claim = f"{what} {{}} layers cannot be trained at rate {RATE:g}, where batch norm trains."
    return _at_depths(runs, runs.does_not_train, method, claim, LIMIT)


def trains_as_batch_norm(runs: Runs, method: str, what: str, above: int = 0) -> list[Check]:
    """Whether at every depth above a limit a method trains at batch norm's rate; see `deep_does_not_train`."""
    claim = f"{what} {{}} layers are trained at rate {RATE:g}, as batch norm's are."
    return _at_depths(runs, runs.trains, method, claim, above)


def _at_depths(runs: Runs, decided: Callable[..., Check], method: str, claim: str, above: int) -> list[Check]:
    """A check at every depth above a limit, against batch norm at the same depth."""
    return [
        decided(
            claim.format(layers),
            against={"method": "BatchNorm", "depth": layers},
            least=_LEAST,
            method=method,
            depth=layers,
        )
        for layers in depths_of(runs, above)
    ]


def _evidence(runs: Runs, efforts: Iterable[Effort], schemes: Mapping[str, str], title: str, remark: str) -> Evidence:
    measured = runs.summary(("method", "depth"), ("test_accuracy",))

    def draw() -> Axes:
        optima = measured.assign(
            mean=measured["test_accuracy"],
            deviation=measured["test_accuracy_deviation"],
            trainable=measured["trained"] == measured["n"],
        )
        up = "test accuracy (%) after the first epochs; hollow: not trained"
        return optimum_against(optima, series="method", across="depth", inks=inks_of(schemes), title=title, up=up)

    return Evidence(
        measured,
        runs,
        setup_of(runs, efforts),
        draw=draw,
        remarks=(remark, *runs.failures),
        reduction=runs.reduction,
    )


def setup_of(runs: Runs, efforts: Iterable[Effort]) -> dict[str, object]:
    """How the runs were made."""
    varying = ("depth", "batch_size", "replicates", "best", "seeds", "epochs")
    setup = {name: value for name, value in runs.setup.items() if name not in varying}
    depths = [
        f"{one.model}: {one.epochs} epochs, minibatches of {one.batch_size}, {one.replicates} runs of each method, "
        f"{one.data}"
        for one in efforts
    ]
    return setup | {"depths": depths}


def _figure_3(runs: Runs) -> list[Check]:
    shallow, *deeper = depths_of(runs)
    return [
        *trains_as_batch_norm(runs, "Fixup", "With Fixup"),
        *(
            runs.trains(
                f"With batch norm {layers} layers are trained, as {shallow} are.",
                against={"method": "BatchNorm", "depth": shallow},
                least=_LEAST,
                method="BatchNorm",
                depth=layers,
            )
            for layers in deeper
        ),
        *(
            larger(
                f"At {layers} layers Fixup's test accuracy is less than {_MATCH:g} points below batch norm's.",
                runs.accuracy(method="Fixup", depth=layers),
                runs.accuracy(method="BatchNorm", depth=layers),
                by=-_MATCH,
            )
            for layers in (shallow, *deeper)
        ),
        *deep_does_not_train(runs, "LSUV", "With LSUV"),
        *deep_does_not_train(runs, "sqrt(1/2)", "With sums times √½"),
    ]


@artefact("fixup/figure-3", basis="training", checks=_figure_3)
def first_epoch(context: Context, *, efforts: Sequence[Effort]) -> Evidence:
    """Figure 3: after an epoch at rate 0.1 Fixup matches batch norm to 10,000 layers; LSUV and √½ fail past 100."""
    return _evidence(
        first_epochs(context, METHODS, efforts),
        efforts,
        METHODS,
        "The first epochs at rate 0.1",
        "The error of single runs is not known. For batch norm a quarter of the possible gain is enough to compare "
        "with: after the paper's one epoch it has less than half.",
    )


def _rule_2(runs: Runs) -> list[Check]:
    return [
        *trains_as_batch_norm(runs, "rule 2", "By rule 2 alone"),
        *deep_does_not_train(runs, "no rule", "Without any rule"),
        *deep_does_not_train(runs, "rules 1 and 3", "By rules 1 and 3, without rule 2,"),
        *(
            larger(
                f"At {layers} layers rules 1 and 3 improve on rule 2 alone: Fixup's test accuracy is higher.",
                runs.accuracy(method="Fixup", depth=layers),
                runs.accuracy(method="rule 2", depth=layers),
            )
            for layers in depths_of(runs)
        ),
    ]


@artefact("fixup/rule-2", basis="training", checks=_rule_2)
def rules(context: Context, *, efforts: Sequence[Effort]) -> Evidence:
    """Section 3: rule 2 alone trains networks of any depth at rate 0.1, and without it they do not train."""
    return _evidence(
        first_epochs(context, RULES, efforts),
        efforts,
        RULES,
        "Rules of Fixup in the first epochs",
        "Rule 1 is the zero start, rule 2 the scale of the branches, rule 3 multipliers and biases. zeroinit/table-3 "
        "contradicts that rule 2 is necessary: a multiplier at zero trains without it.",
    )
