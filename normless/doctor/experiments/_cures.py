"""Try cures before they are offered: converted copies take the same trial steps."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from normless._internal.arguments import arguments_of
from normless._internal.copying import copied
from normless.affine._maps import freeze
from normless.conversion import convert, plan, scheme_of
from normless.doctor._findings import REFUTABLE, Cure, Finding, OverBudget
from normless.doctor.experiments._engine import (
    LITTLE,
    MANY,
    MUCH,
    Copies,
    Experiment,
    RunningExperiment,
    Trial,
    best_rate,
    fits,
    is_fitted,
    set_groups,
)
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import Together
from normless.errors import NormlessError
from normless.optim import param_groups
from normless.probes.hooks._observe import takes_closure
from normless.residual import ResidualMap, residual_map
from normless.state import preserve_random_state

RATE, MOMENTUM = 0.1, 0.9
FACTORS = (1.0, 0.1, 0.01, 10.0)
# Cures in the list of schemes that are not schemes: norms at their running statistics, and weights of variance
# 2 / fan-in and biases of zero in all layers.
FREEZE, INITIALIZE = "nl.freeze(model)", "nn.init.kaiming_normal_(weight)"
# The number of cures to try that lower the loss by this share; such a trial does not need another rate.
ENOUGH, WELL = 2, 0.5
# Kinds that concern evaluation, which a trial does not show.
OF_EVALUATION = {"small_batch", "mixes_examples"}
# A scheme must reach a loss below this share of that of the unchanged network at its best rate.
BETTER = 0.9


def with_tried_cures(exam: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Return the findings with the schemes that lower the loss, best first; without steps, with all that fit.

    If trial steps of the unchanged network fit the batch, findings in its signal become advice.
    """
    findings = _outranked(exam, findings, steps)
    if scheme_of(exam.model) is not None:
        return [replace(finding, cure=_of_original(finding.cure)) for finding in findings]
    trials: dict[str, Trial | None] = {}
    cures: dict[int, Cure] = {}
    # Two cures that work well for the most severe finding; one for each other finding, possibly the same.
    needed, share = ENOUGH, WELL
    for finding in sorted(findings, key=lambda finding: (finding.advice, -finding.severity)):
        cure, names = finding.cure, finding.cure.schemes
        is_tried = steps > 0 and not finding.advice
        for name in names if is_tried else ():
            known = [trial for name in names if (trial := trials.get(name)) and trial.progress > share]
            if len(known) < needed and name not in trials:
                with suppress(OverBudget):
                    trials[name] = _trial_of(exam, name, steps)
        with suppress(OverBudget):
            if is_tried and cure.settings:
                cures[id(finding)] = _with_settings(exam, cure)
            elif is_tried and any(name in trials for name in names):
                control = None if finding.kind in OF_EVALUATION else _control(exam, steps)
                helpful = {name: trial for name in names if (trial := trials.get(name))}
                cures[id(finding)] = _ranked(cure, helpful, control, exam.optimizer is not None)
                needed, share = 1, MUCH
        if id(finding) not in cures:
            cures[id(finding)] = _proposed(exam, cure)
    return [replace(finding, cure=cures[id(finding)]) for finding in findings]


def _outranked(exam: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Return findings that a fit refutes, as those in the signal, as advice if trial steps fit the batch."""
    refutable = any(finding.kind in REFUTABLE and not finding.advice for finding in findings)
    if not refutable or not steps or not isfinite(exam.passed.loss) or not any(exam.passed.gradients.values()):
        return findings
    known = [*exam.trials]
    if not is_fitted(exam):
        with suppress(OverBudget):
            known.append(_control(exam, steps))
    if not any(trial is not None and fits(exam, trial) for trial in known):
        return findings
    return [replace(finding, advice=finding.advice or finding.kind in REFUTABLE) for finding in findings]


def _control(exam: Examination, steps: int) -> Trial | None:
    """Return the best trial of the unchanged network over several rates, made once; None if all hardly help."""
    if exam.control is None:
        exam.control = (_best(exam, exam.model, exam.map, steps, continues=LITTLE, most=2 * MANY),)
    (control,) = exam.control
    return control  # type: ignore[no-any-return]


def _trial_of(exam: Examination, name: str, steps: int) -> Trial | None:
    """Return the best trial of a treated copy over several rates; None if it does not fit or hardly helps."""
    if name == INITIALIZE:
        return _best(exam, initialized(exam.model), exam.map, steps)
    if exam.map is not None:
        with suppress(NormlessError):
            network = treated(exam.model, name, exam.inputs, exam.map)
            positional, named = arguments_of(exam.inputs)
            return _best(exam, network, residual_map(network, *positional, **named), steps)
    return None


def _best(
    exam: Examination, network: nn.Module, mapped: ResidualMap | None, steps: int, **limits: Any
) -> Trial | None:
    """Return the best trial of a network over several rates, with an optimizer like that of the training."""
    given = exam.optimizer or SGD(exam.model.parameters(), RATE, MOMENTUM)

    def make() -> Copies:
        trainee = copied(network)
        return trainee, optimizer_like(given, trainee, mapped)

    return best_rate(exam, lambda factor: Experiment(factor=factor, make=make), FACTORS, steps, **limits)


def _schemes(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in (FREEZE, INITIALIZE))


def _of_original(cure: Cure) -> Cure:
    """Return the cure for a converted network: its schemes apply to the network before the conversion."""
    names = _schemes(cure.schemes)
    words = f"{cure.words}: convert the original, nl.convert(original, {names[0]!r}, inputs)" if names else cure.words
    return replace(cure, words=words, schemes=names)


def _call(name: str) -> str:
    return name if name in (FREEZE, INITIALIZE) else f"nl.convert(model, {name!r}, inputs)"


def _proposed(exam: Examination, cure: Cure) -> Cure:
    """Return a cure that was not tried, with the call of the first scheme that fits, and the others that do."""
    names = [name for name in cure.schemes if name != INITIALIZE]
    fitting = [name for name in names if _fits(exam, name)]
    words = cure.words
    if fitting:
        others = f", or instead {', '.join(map(repr, fitting[1:]))}" if fitting[1:] else ""
        words += f": {_call(fitting[0])}{others}"
    elif names:
        words += f"; none of its schemes fits this network ({', '.join(names)})"
    return replace(cure, words=words, schemes=_schemes(fitting))


def _fits(exam: Examination, scheme: str) -> bool:
    if exam.map is None:
        return False
    positional, named = arguments_of(exam.inputs)
    with suppress(NormlessError):
        if scheme == FREEZE:
            freeze(exam.model)
        else:
            plan(exam.model, scheme, *positional, residual_map=exam.map, **named)
        return True
    return False


def _took(trial: Trial) -> str:
    return f"take the loss from {trial.losses[0]:.3g} to {trial.last:.3g}"


def _with_settings(exam: Examination, cure: Cure) -> Cure:
    """Return a cure by settings with the result of trial steps, and without the settings if they do not help."""
    experiment = Experiment(alter=lambda _, optimizer: set_groups(optimizer, cure.settings))
    trial = RunningExperiment(exam, experiment).to(MANY)
    steps = f"{trial.steps} trial steps with it {_took(trial)}"
    if trial.progress > LITTLE:
        return replace(cure, words=f"{cure.words}; {steps}", is_tried=True)
    return replace(cure, words=f"{cure.words}, which is not enough: {steps}", settings={}, is_tried=True)


def _ranked(cure: Cure, tried: dict[str, Trial], control: Trial | None, has_rate: bool) -> Cure:
    """Return the cure with the schemes that reach a lower loss than the unchanged network at its best rate.

    If the training has an optimizer, the rate belongs to the cure.
    """
    limit = inf if control is None else BETTER * control.end
    losses = {name: trial.end for name, trial in tried.items() if trial.end < limit}
    losses = dict(sorted(losses.items(), key=lambda pair: pair[1]))
    best = next(iter(losses), None)
    names = ", ".join(cure.schemes)
    if best is not None:
        first = tried[best]
        steps = f"{first.steps} trial steps with it at rate {first.rate:.3g} {_took(first)}"
        words, rate = f"{cure.words}: {_call(best)}; {steps}", first.rate
    elif control is not None:
        steps = f"{control.steps} steps of the unchanged network {_took(control)}"
        none = f", and none of {names} reaches a lower one" if names else ""
        words, rate = f"{cure.words}; or use a learning rate of {control.rate:.2g}: {steps}{none}", control.rate
    else:
        words = f"{cure.words}; none of {names} fits the network and lowers the loss in the trial"
        return replace(cure, words=words, schemes=(), is_tried=True)
    return Cure(words, _schemes(losses), losses, {"lr": rate} if has_rate else {}, is_tried=True)


def treated(model: nn.Module, name: str, inputs: object, mapped: ResidualMap | None = None) -> nn.Module:
    """Return a copy with frozen norms, with other initial weights, or converted by a scheme."""
    if name == INITIALIZE:
        return initialized(model)
    positional, named = arguments_of(inputs)
    return freeze(model) if name == FREEZE else convert(model, name, *positional, residual_map=mapped, **named)


def initialized(model: nn.Module) -> nn.Module:
    """Return a copy with weights of variance 2 / fan-in and biases of zero in all layers but embeddings."""
    fresh: nn.Module = copied(model)
    with preserve_random_state(fresh):
        for module in fresh.modules():
            own = {} if isinstance(module, nn.Embedding) else dict(module.named_parameters(recurse=False))
            if not any(parameter.dim() > 1 for parameter in own.values()):
                continue
            for name, parameter in own.items():
                if parameter.dim() > 1:
                    nn.init.kaiming_normal_(parameter)
                elif "bias" in name:
                    nn.init.zeros_(parameter)
    return fresh


def optimizer_like(given: Optimizer, network: nn.Module, mapped: ResidualMap | None = None) -> Optimizer:
    """Create an optimizer of the class and settings of a given one, at its largest rate."""
    rate = max(group["lr"] for group in given.param_groups)
    given = given.usual if isinstance(given, Together) else given
    takes = inspect.signature(type(given)).parameters
    defaults = {name: value for name, value in given.defaults.items() if name in takes} | {"lr": rate}
    if mapped is None or takes_closure(given):
        return type(given)(network.parameters(), **defaults)
    decay = defaults.get("weight_decay", 0.0)
    return type(given)(param_groups(network, lr=rate, weight_decay=decay, residual_map=mapped), **defaults)
