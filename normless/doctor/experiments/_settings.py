"""Check the settings of an optimizer: each unusual one is restored in a trial, and named if that lets it train."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from normless.doctor._findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import (
    LITTLE,
    MANY,
    MUCH,
    UNCHANGED,
    Experiment,
    RunningExperiment,
    Trial,
    compared,
    fits,
    scheduled_rate,
)
from normless.doctor.experiments._rates import MOMENTUM, USUAL
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import named_groups
from normless.doctor.facts._tracer import Tracer

Groups = list[dict[str, Any]]

# The rate of a group is too small or too large beyond these multiples of the median of the others.
LOW, FAR = 1e-3, 30.0
# A setting is a cause if the trial without it leaves less than the first share of the loss, or if that with it makes
# less than the second share of its progress.
SHARE, LEAST = 0.5, 0.2
# Decay that is larger than the gradient in more than this share of the elements outweighs it.
MOST = 0.5
# A decay is tried if the penalty of the weights is above the loss of guessing, or above this share per step.
PER_STEP = 5e-3
# Settings that are not numbers to be chosen, or that other checks judge.
_OTHERS = {
    "lr",
    "maximize",
    "nesterov",
    "weight_decay",
    "amsgrad",
    "centered",
    "max_iter",
    "max_eval",
    "history_size",
}


@check("settings of the optimizer", needs="steps")
def check_settings(exam: Examination) -> Steps:
    """Look for settings that keep the optimizer from fitting the batch, by trials with their usual values."""
    if exam.optimizer is None or not exam.trials:
        raise NotAsked("not tried" if exam.optimizer else "no optimizer was given")
    for group in exam.optimizer.param_groups:
        betas = group.get("betas", ())
        if len(betas) == 2 and float(betas[0]) > float(betas[1]):
            yield finding("swapped_betas", (), {"beta1": float(betas[0]), "beta2": float(betas[1])})
            break
    yield from _long_memory(exam, exam.optimizer)
    trial: Trial = exam.trials[0]
    if fits(exam, trial):
        return "the batch is fitted with them"
    suspects, number = [*_suspects(exam, exam.optimizer, trial)], max(MANY, exam.steps)
    if not suspects:
        return "none is unusual"
    (_, own, _), *_ = compared(exam, [UNCHANGED], number)
    if own is None or fits(exam, own):
        return f"the batch is fitted with them in {number} steps"
    for suspect, other, _ in compared(exam, suspects, number):
        if other is None:
            continue
        is_lower = other.end < SHARE * own.end or own.progress < LEAST * other.progress
        if is_lower and other.progress > MUCH:
            evidence = {**own.evidence, "loss_restored": other.losses[-1]}
            yield finding("unusual_setting", suspect.where, evidence, **suspect.words)
            return f"{suspect.what} keeps it from fitting the batch"
    return f"{len(suspects)} unusual settings were restored in trials"


def _long_memory(exam: Examination, optimizer: Optimizer) -> Iterator[Finding]:
    """Report a momentum that needs many steps to show that its rate is too large, by a trial with a usual one."""
    momentum = max(float(group.get("momentum", 0.0)) for group in optimizer.param_groups)
    if not MOMENTUM <= momentum < 1 or not isinstance(optimizer, SGD) or exam.knows("effective_rate"):
        return
    factor = (1 - USUAL) / (1 - momentum)

    def alter(_: nn.Module, copy: Optimizer) -> None:
        for group in copy.param_groups:
            group["momentum"], group["lr"] = USUAL, group["lr"] * factor

    trial = RunningExperiment(exam, Experiment(alter=alter)).to(exam.steps)
    if trial.progress < -LITTLE:
        evidence = {"momentum": momentum, "rate": trial.rate / factor, "usual": USUAL, "same_rate": trial.rate}
        yield finding("long_memory", (), {**evidence, **trial.evidence})


def _restored(
    kind: str,
    setting: str,
    usual: str,
    changes: dict[str, Any],
    group: int | None = None,
    where: tuple[str, ...] = (),
) -> Experiment:
    """Return the experiment that gives all groups of an optimizer, or one of them, usual values."""

    def alter(_: nn.Module, optimizer: Optimizer) -> None:
        for one in optimizer.param_groups if group is None else [optimizer.param_groups[group]]:
            one.update({name: value for name, value in changes.items() if name in one})

    words = {"setting": setting, "usual": usual, "name": kind, "settings": {} if group is not None else changes}
    return Experiment(f"with {usual}", "optimizer", setting, where, alter=alter, words=words)


def _suspects(exam: Examination, optimizer: Optimizer, trial: Trial) -> Iterator[Experiment]:
    """Yield an experiment for each setting that may be the cause."""
    groups = optimizer.param_groups
    rates = [float(scheduled_rate(group)) for group in groups]
    for own in named_groups(optimizer, exam.model):
        others = [rate for number, rate in enumerate(rates) if number != own.number and rate]
        times = rates[own.number] / median(others) if others else 1.0
        if own.names and (times >= FAR or 0 < times < LOW):
            usual, kind = median(others), "rate_too_large" if times >= FAR else "rate_too_small"
            setting = f"the learning rate {rates[own.number]:.3g} of group {own.number} ({own.names[0]}, …)"
            yield _restored(kind, setting, f"{usual:.3g}", {"lr": usual}, own.number, own.names)
    decay = max(float(group.get("weight_decay", 0.0)) for group in groups)
    per_step = max(rate * float(group.get("weight_decay", 0.0)) for rate, group in zip(rates, groups, strict=True))
    if decay and (_penalty(optimizer) > abs(exam.guessing) or per_step > PER_STEP or _outweighs(exam, optimizer)):
        yield _restored("excessive_decay", f"weight decay {decay:.3g}", "none", {"weight_decay": 0.0})
    for name, usual in _usual(optimizer).items():
        given = next((group[name] for group in groups if name in group and group[name] != usual), usual)
        if given != usual and not (name == "momentum" and given <= usual) and trial.progress <= MUCH:
            yield _restored("unusual_setting", f"{name}={given!r}", repr(usual), {name: usual})


def _outweighs(exam: Examination, optimizer: Optimizer) -> bool:
    """Whether decay that is part of the gradient is larger than the rest of it in most elements of the weights.

    Optimizers that divide each element by its own size then move it towards zero at their whole rate.
    """
    if _is_decoupled(optimizer) or isinstance(optimizer, SGD):
        return False
    groups = [(group, float(group.get("weight_decay", 0.0))) for group in optimizer.param_groups]
    decays = {id(own): decay for group, decay in groups for own in group["params"] if decay and own.dim() > 1}
    decayed = [own for own in exam.trained if id(own) in decays]
    if not decayed:
        return False
    with exam.repeated(Tracer()) as loss:
        gradients = torch.autograd.grad(loss, decayed, allow_unused=True, materialize_grads=True)
    pairs = zip(decayed, gradients, strict=True)
    smaller = sum(int((gradient.abs() < decays[id(own)] * own.detach().abs()).sum()) for own, gradient in pairs)
    return smaller > MOST * sum(own.numel() for own in decayed)


def _usual(optimizer: Optimizer) -> dict[str, Any]:
    """Return the numbers that the class of an optimizer has as defaults; 0.9 is a usual momentum."""
    parameters = inspect.signature(type(optimizer)).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if name not in _OTHERS}
    usual = {
        name: value
        for name, value in defaults.items()
        if isinstance(value, (float, int, tuple)) and not isinstance(value, bool)
    }
    return usual | ({"momentum": USUAL} if "momentum" in usual else {})


def _penalty(optimizer: Optimizer) -> float:
    """Return λ/2 ‖w‖² of the weights, for decay that is part of the gradient; 0 for decoupled decay."""
    if _is_decoupled(optimizer):
        return 0.0
    return sum(
        0.5 * float(group.get("weight_decay", 0.0)) * float(parameter.detach().double().square().sum())
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _is_decoupled(optimizer: Optimizer) -> bool:
    """Whether an optimizer subtracts its decay from the weights, and does not add it to the gradient."""
    groups = optimizer.param_groups
    return "AdamW" in type(optimizer).__name__ or any(group.get("decoupled_weight_decay") for group in groups)
