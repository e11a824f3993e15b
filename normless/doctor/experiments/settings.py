"""Check the settings of an optimizer: each unusual one is restored in a trial, and named if that lets it train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from torch.optim import SGD, Optimizer

from normless._internal.copying import copied
from normless.doctor.experiments.rates import LITTLE, MANY, MOMENTUM, MUCH, USUAL
from normless.doctor.experiments.steps import Trial, copies, fits, scheduled_rate, stepped
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.held import named_groups
from normless.doctor.facts.passed import pass_through
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding

Groups = list[dict[str, Any]]

# A group hardly moves if its first update is below UNMOVED of its weights at a rate below LOW times the largest; its
# rate is far above those of others from FAR times their median on.
UNMOVED, LOW, FAR = 1e-6, 1e-3, 30.0
# A setting is a cause if the trial without it leaves less than the first share of the loss, or if that with it makes
# less than the second share of its progress.
SHARE, LEAST = 0.5, 0.2
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
# Hooks that leave less than this share of a gradient clip it to nothing.
CLIPPED = 1e-2


@check("settings of the optimizer")
def check_settings(exam: Examination, steps: int) -> Steps:
    """Look for settings that keep the optimizer from fitting the batch, by trials with their usual values."""
    if exam.optimizer is None or not exam.trials:
        raise NotAsked("not tried" if exam.optimizer else "no optimizer was given")
    trial: Trial = exam.trials[0]
    yield from _of_betas(exam.optimizer)
    yield from _slow_groups(exam, trial)
    yield from _clipped_by_hooks(exam)
    yield from _long_memory(exam, steps)
    if fits(exam, trial):
        return "the batch is fitted with them"
    count, own = 0, None
    number = max(MANY, steps)
    for words, where, restore in _suspects(exam, trial):
        count += 1
        own = own or _restored(exam, lambda groups: None, number)
        if fits(exam, own):
            return f"the batch is fitted with them in {number} steps"
        other = _restored(exam, restore, number)
        is_lower = other.end < SHARE * own.end or own.progress < LEAST * other.progress
        if is_lower and other.progress > MUCH:
            evidence = {"steps": number, "loss_before": own.losses[0], "loss_after": own.last}
            evidence |= {"loss_restored": other.losses[-1]}
            yield finding("unusual_setting", where, evidence, **words)
            return f"{words['setting']} keeps it from fitting the batch"
    return f"{count} unusual settings were restored in trials" if count else "none is unusual"


Suspect = tuple[Mapping[str, Any], tuple[str, ...], Callable[[Groups], None]]


def _suspects(exam: Examination, trial: Trial) -> Iterator[Suspect]:
    """Yield words, parameters and a change of the groups for each setting that may be the cause."""
    assert exam.optimizer is not None
    groups = exam.optimizer.param_groups
    yield from _far_rates(exam)
    decay = max(float(group.get("weight_decay", 0.0)) for group in groups)
    if decay and (_penalty(exam) > abs(exam.guessing) or _per_step(groups) > PER_STEP):
        words = {"setting": f"weight decay {decay:.3g}", "usual": "none", "settings": {"weight_decay": 0.0}}
        yield words | {"name": "excessive_decay"}, (), _setter("weight_decay", 0.0)
    usual = _usual(exam.optimizer)
    for name, value in usual.items():
        given = next((group[name] for group in groups if name in group and group[name] != value), value)
        inert = name == "momentum" and given <= value
        if given == value or inert:
            continue
        if trial.progress > MUCH:
            continue
        words = {"setting": f"{name}={given!r}", "usual": repr(value), "name": "unusual_setting"}
        yield words | {"settings": {name: value}}, (), _setter(name, value)


def _usual(optimizer: Optimizer) -> dict[str, Any]:
    """Return the numbers that the class of an optimizer has as defaults; 0.9 is a usual momentum."""
    parameters = inspect.signature(type(optimizer)).parameters
    usual = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in _OTHERS
        and isinstance(parameter.default, (float, int, tuple))
        and parameter.default is not True
        and parameter.default is not False
    }
    return usual | ({"momentum": USUAL} if "momentum" in usual else {})


def _setter(name: str, value: Any) -> Callable[[Groups], None]:
    def change(groups: Groups) -> None:
        for group in groups:
            if name in group:
                group[name] = value

    return change


def _restored(exam: Examination, change: Callable[[Groups], None], steps: int) -> Trial:
    """Return a trial after a change of the groups of a copied optimizer."""
    assert exam.optimizer is not None
    model, optimizer = copies(exam, exam.optimizer)
    change(optimizer.param_groups)
    return stepped(exam, model, optimizer, steps)


def _penalty(exam: Examination) -> float:
    """Return λ/2 ‖w‖² of the weights, for decay that is part of the gradient; 0 for decoupled decay."""
    assert exam.optimizer is not None
    if _is_decoupled(exam.optimizer):
        return 0.0
    return sum(
        0.5 * float(group.get("weight_decay", 0.0)) * float(parameter.detach().double().square().sum())
        for group in exam.optimizer.param_groups
        for parameter in group["params"]
    )


def _is_decoupled(optimizer: Optimizer) -> bool:
    return "AdamW" in type(optimizer).__name__ or any(
        group.get("decoupled_weight_decay") for group in optimizer.param_groups
    )


def _per_step(groups: Groups) -> float:
    return max(float(scheduled_rate(group)) * float(group.get("weight_decay", 0.0)) for group in groups)


def _of_betas(optimizer: Optimizer) -> Iterator[Finding]:
    """Report averages of the gradient that are longer than those of its square."""
    for group in optimizer.param_groups:
        betas = group.get("betas", ())
        if len(betas) == 2 and float(betas[0]) > float(betas[1]):
            evidence = {"beta1": float(betas[0]), "beta2": float(betas[1])}
            yield finding("swapped_betas", (), evidence)
            return


def _long_memory(exam: Examination, steps: int) -> Iterator[Finding]:
    """Report a momentum that needs many steps to show that its rate is too large, by a trial with a usual one."""
    assert exam.optimizer is not None
    momentum = max(float(group.get("momentum", 0.0)) for group in exam.optimizer.param_groups)
    if momentum < MOMENTUM or momentum >= 1 or not isinstance(exam.optimizer, SGD):
        return
    factor = (1 - USUAL) / (1 - momentum)

    def change(groups: Groups) -> None:
        for group in groups:
            group["momentum"], group["lr"] = USUAL, group["lr"] * factor

    trial = _restored(exam, change, steps)
    if trial.progress < -LITTLE and not exam.knows("effective_rate"):
        evidence = {"momentum": momentum, "rate": trial.rate / factor, "usual": USUAL, "same_rate": trial.rate}
        evidence |= {"loss_before": trial.losses[0], "loss_after": trial.last, "steps": trial.steps}
        yield finding("long_memory", (), evidence)


def _slow_groups(exam: Examination, trial: Trial) -> Iterator[Finding]:
    """Report groups with a rate far below the largest that hardly move."""
    assert exam.optimizer is not None
    groups = named_groups(exam.optimizer, exam.model)
    highest = max(float(scheduled_rate(group.settings)) for group in groups)
    for group in groups:
        shares = [trial.shares[name] for name in group.names if name in trial.shares]
        rate = float(scheduled_rate(group.settings))
        if shares and 0 < rate < LOW * highest and max(shares) < UNMOVED:
            evidence = {"rate": rate, "highest": highest, "share": max(shares), "parameters": len(group.names)}
            yield finding("slow_group", group.names, evidence | {"group": group.number})


def _far_rates(exam: Examination) -> Iterator[Suspect]:
    """Yield the groups with a rate far above those of the others."""
    assert exam.optimizer is not None
    rates = [float(scheduled_rate(group)) for group in exam.optimizer.param_groups]
    for group in named_groups(exam.optimizer, exam.model):
        number, names = group.number, group.names
        others = [rate for other, rate in enumerate(rates) if other != number and rate]
        if not names or not others or rates[number] < FAR * median(others):
            continue

        def change(groups: Groups, number: int = number, rate: float = median(others)) -> None:
            groups[number]["lr"] = rate

        words = {"setting": f"the learning rate {rates[number]:.3g} of group {number} ({names[0]}, …)"}
        yield words | {"usual": f"{median(others):.3g}", "name": "rate_too_large"}, names, change


def _clipped_by_hooks(exam: Examination) -> Iterator[Finding]:
    """Report hooks on gradients that leave hardly anything of them, where the size of a step depends on it."""
    hooked = [name for name, own in exam.model.named_parameters() if getattr(own, "_backward_hooks", None)]
    if not hooked or not isinstance(exam.optimizer, SGD):
        return
    plain = pass_through(copied(exam.model), exam.inputs, exam.targets, exam.loss, None).gradients
    after, before = (
        sum((gradients.get(name) or 0.0) ** 2 for name in hooked) ** 0.5
        for gradients in (exam.passed.gradients, plain)
    )
    if 0 < after < CLIPPED * before:
        yield finding("clipped_by_hooks", hooked, {"norm": after, "norm_before": before})
