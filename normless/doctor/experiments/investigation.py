"""Experiments on copies that separate the causes of a batch that cannot be fitted: one change after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils._pytree import tree_map

from normless.doctor.experiments.alterations import PAIRS, Altered, Site, drawn, removable, shuffled, standardized
from normless.doctor.experiments.rates import CLEARLY, MANY
from normless.doctor.experiments.steps import Trial, copies, fits, stepped
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call
from normless.doctor.facts.tracer import tensors
from normless.doctor.findings import OF_SIGNAL, NotAsked, OverBudget, Steps, check, finding
from normless.probes import Loss, preserve_random_state

# An experiment succeeds if the loss falls this many times as far below that of guessing as without it.
FURTHER = 3.0
# Without being asked for, experiments are made with networks and batches of at most this number of elements.
SMALL = 10**5
# The number of layers or calls that are tried one after another.
SINGLE = 12
# Findings that say what happens, and not why.
SYMPTOMS = OF_SIGNAL | {
    "input_independent_outputs",
    "not_fitted",
    "saturated_attention",
    "unread_input",
    "unread_part",
}
# The causes, the most specific first; masks and operations with constants come before them.
_ORDER = ("loss", "optimizer", "weights", "operation", "inputs", "data")
_NOISE = "with random inputs"
Run = Callable[[], tuple[Examination, nn.Module, Optimizer]]


@dataclass(frozen=True)
class Experiment:
    """A change of the training.

    Attributes:
        cause: what it concerns, as the first word of a kind.
        change: the change in words, such as `without the softmax`.
        what: what prevents the fit if the change lets the batch be fitted.
        run: returns the changed examination, network and optimizer.
        where: modules.
        parts: narrower experiments, to be made if this one succeeds.
        is_constant: whether the change leaves out a mask, or an operation with a constant.
    """

    cause: str
    change: str
    what: str
    run: Run
    where: tuple[str, ...] = ()
    parts: tuple[Experiment, ...] = ()
    is_constant: bool = False


@check("experiments")
def check_experiments(exam: Examination, steps: int, asked: bool | None) -> Steps:
    """Change one part of the training after another, if the batch cannot be fitted and no cause is known."""
    if steps < 1 or asked is False or not isfinite(exam.passed.loss) or not any(exam.passed.gradients.values()):
        raise NotAsked("none was made")
    is_stuck = exam.knows("not_fitted")
    if not is_stuck and (not asked or any(fits(exam, trial) for trial in exam.trials)):
        raise NotAsked("none was needed: no finding says that the batch cannot be fitted")
    kinds = {known.kind for known in exam.found if not known.advice}
    if not asked and kinds - SYMPTOMS:
        raise NotAsked("a cause is known")
    if asked is None and _size(exam) > SMALL:
        raise NotAsked("they take long for a network of this size: diagnose(…, investigate=True) makes them")
    number = max(MANY, steps)
    base, given, rates = _base(exam, number)
    if fits(exam, base):
        exam.trials.append(base)
        raise NotAsked(f"none was needed: {base.steps} further steps fit the batch")
    made: list[tuple[Experiment, float]] = []
    won: list[tuple[Experiment, float]] = []
    for experiment in _experiments(exam, given, rates):
        end = _end(exam, experiment, base, number)
        made.append((experiment, end))
        if end < inf:
            won.append(
                next(
                    ((part, at) for part in experiment.parts if (at := _end(exam, part, base, number)) < inf),
                    (experiment, end),
                )
            )
    won.sort(key=lambda pair: (not pair[0].is_constant, _ORDER.index(pair[0].cause), pair[1]))
    if won and won[0][0].change == _NOISE and len(won) > 1:
        # Inputs that can be fitted with shuffled targets differ enough.
        won = won[1:]
    failed = ", ".join(experiment.change for experiment, end in made if end == inf)
    if not won:
        return f"the batch is not fitted {failed} either"
    (best, end), others = won[0], ", ".join(experiment.change for experiment, _ in won[1:])
    evidence: dict[str, Any] = {"steps": number, "loss_before": base.losses[0], "loss_after": base.end}
    evidence |= {"loss_changed": end}
    words = {"cause": best.cause, "what": best.what, "change": best.change, "failed": failed or "no other change"}
    others = f"; it is also fitted {others}" if others else ""
    # A factor or a mask explains findings in the signal.
    yield finding("prevented", best.where, evidence, grade=best.is_constant, **words, others=others)
    return f"the batch is fitted {best.change}"


def _size(exam: Examination) -> int:
    return max(sum(tensor.numel() for tensor in part) for part in (exam.trained, tensors(exam.inputs)))


def _base(exam: Examination, number: int) -> tuple[Trial, Optimizer, dict[str, Trial]]:
    """Return the best trial of the unchanged training over some optimizers, its optimizer, and all trials by name."""
    parameters = exam.trained
    usual: dict[str, Optimizer] = {
        "AdamW at rate 0.001": AdamW(parameters, 1e-3),
        "AdamW at rate 0.01": AdamW(parameters, 1e-2),
        "SGD at rate 0.1": SGD(parameters, 0.1, 0.9),
    }
    chosen = usual if exam.optimizer is None else {"its optimizer": exam.optimizer} | usual
    ran = {name: stepped(exam, *copies(exam, optimizer), number) for name, optimizer in chosen.items()}
    own = {} if exam.optimizer is None else {"its optimizer": ran.pop("its optimizer")}
    best = min(ran, key=lambda name: ran[name].end)
    # The optimizer of the training is the one to be judged; the others are used in the experiments.
    return (own or ran).get("its optimizer", ran[best]), chosen[best], ran if own else {}


def _end(exam: Examination, experiment: Experiment, base: Trial, number: int) -> float:
    """Return the loss that a successful experiment reaches, relative to that of guessing; infinite if it fails."""
    try:
        changed, model, optimizer = experiment.run()
        trial = stepped(changed, model, optimizer, number)
        guessing = changed.guessing if isfinite(changed.guessing) else trial.losses[0]
        before = exam.guessing if isfinite(exam.guessing) else base.losses[0]
        fell, falls = ((at - one.end) / max(abs(at), 1e-12) for at, one in ((before, base), (guessing, trial)))
        if falls > max(CLEARLY, FURTHER * fell):
            return 1 - falls
    except OverBudget:
        raise
    except Exception:
        return inf
    return inf


def _experiments(exam: Examination, given: Optimizer, rates: dict[str, Trial]) -> Iterator[Experiment]:
    """Return the experiments that fit the training."""

    def same(**changes: Any) -> tuple[Examination, nn.Module, Optimizer]:
        return exam.changed(**changes), *copies(exam, given)

    if rates:
        name = min(rates, key=lambda name: rates[name].end)
        yield Experiment("optimizer", f"with {name}", "the optimizer", partial(same))
    if (loss := _other_loss(exam)) is not None:
        name = f"with {getattr(loss, '__name__', 'another loss')} as the loss"
        yield Experiment("loss", name, "the loss", partial(same, loss=loss))
    scaled = tree_map(standardized, exam.inputs)
    if any(tensor.is_floating_point() for tensor in tensors(exam.inputs)):
        yield Experiment(
            "inputs", "with standardized inputs", "the scale of the inputs", partial(same, inputs=scaled)
        )
    noise = tree_map(drawn, exam.inputs)
    yield Experiment("data", _NOISE, "the inputs, which differ too little", partial(same, inputs=noise))
    mixed = tree_map(shuffled, exam.targets)
    if exam.targets is not None:
        what = "the pairing of inputs and targets, such as equal inputs with different targets"
        yield Experiment("data", "with shuffled targets", what, partial(same, targets=mixed))
    yield from _resets(exam, given)
    yield from _omissions(exam, given)


def _resets(exam: Examination, given: Optimizer) -> Iterator[Experiment]:
    names = [
        name for name, module in exam.model.named_modules() if callable(getattr(module, "reset_parameters", None))
    ]

    def reset(chosen: list[str]) -> tuple[Examination, nn.Module, Optimizer]:
        model, optimizer = copies(exam, given)
        with preserve_random_state(model):
            for name in chosen:
                model.get_submodule(name).reset_parameters()  # type: ignore[operator]
        return exam, model, optimizer

    def made(chosen: list[str], parts: tuple[Experiment, ...] = ()) -> Experiment:
        change = f"with {chosen[0] if len(chosen) == 1 else 'all layers'} initialized anew"
        what = "the initial weights of {place}" if len(chosen) == 1 else "the initial weights"
        return Experiment(
            "weights", change, what.format(place=chosen[0]), partial(reset, chosen), (chosen[0],), parts
        )

    if names:
        yield made(names, tuple(made([name]) for name in names[:SINGLE]) if len(names) > 1 else ())


def _omissions(exam: Examination, given: Optimizer) -> Iterator[Experiment]:
    """Return experiments that leave out all calls of one function, with those of single calls as parts."""
    sites, masks = removable(exam.model, exam.inputs)

    def without(chosen: list[Site]) -> tuple[Examination, nn.Module, Optimizer]:
        model, optimizer = copies(exam, given)
        return exam, Altered(model, chosen), optimizer

    def made(calls: dict[Site, Call], parts: tuple[Experiment, ...] = ()) -> Experiment:
        call = next(iter(calls.values()))
        places = {known.place for known in calls.values()}
        name = call.name.strip("_")
        if any(site in masks for site in calls):
            name = f"{name} of a mask"
        what = f"{name} at {call.place}" + (f" and {len(places) - 1} more places" if len(places) > 1 else "")
        words = f"the operation {what}{f' ({call.line})' if call.line else ''}"
        is_constant = call.name in PAIRS or any(site in masks for site in calls)
        run = partial(without, [*calls])
        return Experiment("operation", f"without {what}", words, run, (call.place,), parts, is_constant)

    for name in dict.fromkeys(name for name, _ in sites):
        calls = {site: call for site, call in sites.items() if site[0] == name}
        parts = tuple(made({site: call}) for site, call in [*calls.items()][:SINGLE]) if len(calls) > 1 else ()
        yield made(calls, parts)


def _other_loss(exam: Examination) -> Loss | None:
    """Return a loss of torch for targets and outputs of these types, unless it is that of the training."""
    outputs, targets = exam.passed.logits, exam.targets
    if not isinstance(targets, Tensor) or exam.passed.output is not outputs:
        return None
    loss: Loss = F.mse_loss
    if not targets.is_floating_point() and targets.dim() == outputs.dim() - 1:
        loss = F.cross_entropy
    elif not targets.is_floating_point() or targets.shape != outputs.shape:
        return None
    elif bool(((targets == 0) | (targets == 1)).all()):
        loss = F.binary_cross_entropy_with_logits
    with suppress(Exception), torch.no_grad():
        if abs(float(loss(outputs, targets)) - exam.passed.loss) > 1e-4 * abs(exam.passed.loss):
            return loss
    return None
