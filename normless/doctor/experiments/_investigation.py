"""Experiments on copies that separate the causes of a batch that cannot be fitted: one change after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils._pytree import tree_map

from normless.doctor._findings import OF_SIGNAL, NotAsked, Steps, check, finding
from normless.doctor.experiments._changes import (
    PAIRS,
    Altered,
    Site,
    drawn,
    removable,
    shuffled,
    standardized,
)
from normless.doctor.experiments._engine import CLEARLY, MANY, UNCHANGED, Experiment, Trial, compared, fits, is_fitted
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import TensorCall
from normless.doctor.facts._tracer import tensors
from normless.probes import Loss
from normless.state import preserve_random_state

# An experiment succeeds if the loss falls this many times as far below that of guessing as without it.
FURTHER = 3.0
# Without being asked for, experiments are made with networks and batches of at most this number of elements.
SMALL = 10**5
# The number of layers or calls that are tried one after another.
SINGLE = 12
# Findings that say what happens, and not why.
SYMPTOMS = OF_SIGNAL | {
    *("input_independent_outputs", "not_fitted", "saturated_attention", "unread_input", "unread_part"),
}
# The causes, the most specific first; masks and operations with constants come before them.
_ORDER = ("loss", "optimizer", "weights", "operation", "inputs", "data")
_NOISE = "with random inputs"


@check("experiments", needs="experiments")
def check_experiments(exam: Examination) -> Steps:
    """Change one part of the training after another, if the batch cannot be fitted and no cause is known."""
    steps, asked = exam.steps, exam.investigate
    if steps < 1 or asked is False or not isfinite(exam.passed.loss) or not any(exam.passed.gradients.values()):
        raise NotAsked("none was made")
    if not exam.knows("not_fitted") and (not asked or is_fitted(exam)):
        raise NotAsked("none was needed: no finding says that the batch cannot be fitted")
    if not asked and {known.kind for known in exam.found if not known.advice} - SYMPTOMS:
        raise NotAsked("a cause is known")
    if asked is None and max(sum(map(Tensor.numel, part)) for part in (exam.trained, tensors(exam.inputs))) > SMALL:
        raise NotAsked("they take long for a network of this size: diagnose(…, investigate=True) makes them")
    number = max(MANY, steps)
    own, base, best = _unchanged(exam, number)
    if fits(exam, base):
        exam.trials.append(base)
        raise NotAsked(f"none was needed: {base.steps} further steps fit the batch")
    limit = max(CLEARLY, FURTHER * base.fell_below(exam.guessing))
    won, failed = list[tuple[Experiment, float]](), list[str]()
    for experiment, _, fell in compared(exam, _experiments(exam, best, own), number):
        if not fell > limit:
            failed.append(experiment.change)
            continue
        parts = ((part, at) for part, _, at in compared(exam, experiment.parts, number) if at > limit)
        won.append(next(parts, (experiment, fell)))
    won.sort(key=lambda pair: (not pair[0].is_constant, _ORDER.index(pair[0].cause), -pair[1]))
    if won and won[0][0].change == _NOISE and len(won) > 1:
        # Inputs that can be fitted with shuffled targets differ enough.
        won = won[1:]
    tried = ", ".join(failed)
    if not won:
        return f"the batch is not fitted {tried} either"
    (found, fell), others = won[0], ", ".join(experiment.change for experiment, _ in won[1:])
    evidence: dict[str, Any] = {**base.evidence, "loss_after": base.end, "loss_changed": 1 - fell}
    words = {"cause": found.cause, "what": found.what, "change": found.change, "failed": tried or "no other change"}
    words["others"] = f"; it is also fitted {others}" if others else ""
    # A factor or a mask explains findings in the signal.
    yield finding("prevented", found.where, evidence, grade=found.is_constant, **words)
    return f"the batch is fitted {found.change}"


def _unchanged(exam: Examination, number: int) -> tuple[Experiment | None, Trial, Optimizer]:
    """Return the best of some usual optimizers as an experiment, the trial to compare with, and the best optimizer.

    The optimizer of the training is the one to be judged; the best of the others is used in the experiments.
    """
    usual = {
        "AdamW at rate 0.001": AdamW(exam.trained, 1e-3),
        "AdamW at rate 0.01": AdamW(exam.trained, 1e-2),
        "SGD at rate 0.1": SGD(exam.trained, 0.1, 0.9),
    }
    changes = [
        Experiment(f"with {name}", "optimizer", "the optimizer", optimizer=each) for name, each in usual.items()
    ]
    given = [] if exam.optimizer is None else [UNCHANGED]
    made = [(each, trial) for each, trial, _ in compared(exam, [*given, *changes], number) if trial is not None]
    best, trial = min(made[len(given) :], key=lambda pair: pair[1].end)
    assert best.optimizer is not None
    return (best if given else None), (made[0][1] if given else trial), best.optimizer


def _experiments(exam: Examination, given: Optimizer, other: Experiment | None) -> Iterator[Experiment]:
    """Yield the experiments that fit the training, made with an optimizer; `other` changes the optimizer."""
    made = partial(Experiment, optimizer=given)
    if other is not None:
        yield other
    if (loss := _other_loss(exam)) is not None:
        name = f"with {getattr(loss, '__name__', 'another loss')} as the loss"
        yield made(name, "loss", "the loss", batch={"loss": loss})
    inputs, targets = exam.inputs, exam.targets
    if any(tensor.is_floating_point() for tensor in tensors(inputs)):
        scaled = {"inputs": tree_map(standardized, inputs)}
        yield made("with standardized inputs", "inputs", "the scale of the inputs", batch=scaled)
    what = "the inputs, which differ too little"
    yield made(_NOISE, "data", what, batch={"inputs": tree_map(drawn, inputs)})
    if targets is not None:
        what = "the pairing of inputs and targets, such as equal inputs with different targets"
        yield made("with shuffled targets", "data", what, batch={"targets": tree_map(shuffled, targets)})
    layers = [name for name, module in exam.model.named_modules() if hasattr(module, "reset_parameters")]
    if layers:
        yield _reset(given, layers)
    sites, masks = removable(exam.model, inputs)
    for name in dict.fromkeys(name for name, _ in sites):
        yield _without(given, {site: call for site, call in sites.items() if site[0] == name}, masks)


def _reset(given: Optimizer, names: list[str]) -> Experiment:
    """Return the experiment with layers initialized anew, and those with one of them as parts."""

    def alter(network: nn.Module, _: Optimizer) -> None:
        with preserve_random_state(network):
            for name in names:
                network.get_submodule(name).reset_parameters()  # type: ignore[operator]

    is_one = len(names) == 1
    change = f"with {names[0] if is_one else 'all layers'} initialized anew"
    what = "the initial weights" + (f" of {names[0]}" if is_one else "")
    parts = () if is_one else tuple(_reset(given, [name]) for name in names[:SINGLE])
    return Experiment(change, "weights", what, (names[0],), optimizer=given, alter=alter, parts=parts)


def _without(given: Optimizer, calls: dict[Site, TensorCall], masks: set[Site]) -> Experiment:
    """Return the experiment that leaves out all calls of one function, with those of single calls as parts."""
    call, places = next(iter(calls.values())), {known.place for known in calls.values()}
    is_mask = not masks.isdisjoint(calls)
    name = call.name.strip("_") + " of a mask" * is_mask
    what = f"{name} at {call.place}" + (f" and {len(places) - 1} more places" if len(places) > 1 else "")
    words = f"the operation {what}{f' ({call.line})' if call.line else ''}"
    singles = [*calls.items()][:SINGLE] if len(calls) > 1 else ()
    return Experiment(
        f"without {what}",
        "operation",
        words,
        (call.place,),
        optimizer=given,
        alter=lambda network, _: Altered(network, calls),
        parts=tuple(_without(given, {site: single}, masks) for site, single in singles),
        is_constant=is_mask or call.name in PAIRS,
    )


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
