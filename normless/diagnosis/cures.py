"""Cures, tried before they are offered: copies with other norms or none, which take the same trial steps."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace
from math import isfinite

from torch import nn
from torch.optim import SGD, Optimizer

from normless._internal.arguments import arguments_of
from normless._internal.copying import copied
from normless.conversion import convert, plan, scheme_of
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import OF_SIGNAL, Cure, Finding
from normless.diagnosis.trial import MUCH, SCREEN, Trial, fits, stepped
from normless.errors import NormlessError
from normless.folding import freeze
from normless.optim import param_groups
from normless.residual import ResidualMap, residual_map

RATE, MOMENTUM = 0.1, 0.9
FACTORS = (1.0, 0.1, 0.01, 10.0)
# Among the schemes of a finding, what is none: norms at their running statistics.
FREEZE = "nl.freeze(model)"
# Of a finding's cures, that take this share of the loss; such a trial needs no other rate.
ENOUGH, WELL = 2, 0.5
# A trial that takes less goes on for this many times its steps.
LONGER = 3


def with_tried_cures(exam: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Findings whose schemes lower the loss, ordered by the loss they reach; without steps, all that fit.

    Where steps of the network as it is fit the batch, findings in its signal become advice.
    """
    findings = _outranked(exam, findings, steps)
    if scheme_of(exam.model) is not None:
        return [replace(finding, cure=_of_original(finding.cure)) for finding in findings]
    trials: dict[str, Trial | None] = {}
    cures: dict[int, Cure] = {}
    # Of the most severe finding two cures that work well; of others one, which may be one of these.
    needed, share = ENOUGH, WELL
    for finding in sorted(findings, key=lambda finding: (finding.advice, -finding.severity)):
        names = finding.cure.schemes
        for name in names if steps and not finding.advice else ():
            known = [trial for name in names if (trial := trials.get(name)) and trial.progress > share]
            if len(known) < needed and name not in trials:
                trials[name] = try_cure(exam, name, steps)
        if steps and names and not finding.advice:
            cures[id(finding)] = _ranked(finding.cure, {name: trial for name in names if (trial := trials.get(name))})
            needed, share = 1, MUCH
        else:
            fitting = tuple(name for name in names if _fits(exam, name))
            cures[id(finding)] = replace(finding.cure, words=_words(finding.cure, fitting), schemes=_schemes(fitting))
    return [replace(finding, cure=cures[id(finding)]) for finding in findings]


def _outranked(exam: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Findings in the signal as advice, where the network fits the batch at its rate or at another."""
    of_signal = [finding for finding in findings if finding.kind in OF_SIGNAL and not finding.advice]
    if not of_signal or not steps or not isfinite(exam.passed.loss) or not any(exam.passed.gradients.values()):
        return findings
    if not any(fits(exam, trial) for trial in exam.trials):
        given = exam.optimizer or SGD(exam.model.parameters(), RATE, MOMENTUM)
        control = _best_trial(exam, exam.model, given, exam.map, steps)
        if control is None or not fits(exam, control):
            return findings
        exam.trials.append(control)
    return [replace(finding, advice=finding.advice or finding.kind in OF_SIGNAL) for finding in findings]


def _schemes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name != FREEZE)


def _of_original(cure: Cure) -> Cure:
    """The cure of a converted network, whose schemes are for the network that it was made of."""
    names = _schemes(cure.schemes)
    words = f"{cure.words}: convert the original, nl.convert(original, {names[0]!r}, inputs)" if names else cure.words
    return replace(cure, words=words, schemes=names)


def _words(cure: Cure, fitting: tuple[str, ...]) -> str:
    """A cure in words, with the call of the first of the schemes that fit."""
    if not fitting:
        none = f"; of its schemes none fits this network ({', '.join(cure.schemes)})" if cure.schemes else ""
        return f"{cure.words}{none}"
    others = f", or {', '.join(map(repr, fitting[1:]))} in its place" if fitting[1:] else ""
    return f"{cure.words}: {_call(fitting[0])}{others}"


def _call(name: str) -> str:
    return name if name == FREEZE else f"nl.convert(model, {name!r}, inputs)"


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


def _ranked(cure: Cure, tried: dict[str, Trial]) -> Cure:
    losses = dict(sorted(((name, trial.end) for name, trial in tried.items()), key=lambda pair: pair[1]))
    best = next(iter(losses), None)
    if best is None:
        words = f"{cure.words}; none of {', '.join(cure.schemes)} lowered the loss in the trial, or fits the network"
        return replace(cure, words=words, schemes=())
    first = tried[best]
    words = (
        f"{cure.words}: {_call(best)}, of which {first.steps} trial steps at rate {first.rate:.3g} take the loss "
        f"from {first.losses[0]:.3g} to {first.losses[-1]:.3g}"
    )
    return Cure(words, _schemes(tuple(losses)), losses)


def try_cure(exam: Examination, name: str, steps: int) -> Trial | None:
    """The best trial of a treated copy over several rates; None if it does not fit or hardly lowers the loss."""
    if exam.map is None:
        return None
    with suppress(NormlessError):
        network = treated(exam.model, name, exam.inputs, exam.map)
        given = exam.optimizer or SGD(exam.model.parameters(), RATE, MOMENTUM)
        positional, named = arguments_of(exam.inputs)
        return _best_trial(exam, network, given, residual_map(network, *positional, **named), steps)
    return None


def _best_trial(
    exam: Examination, network: nn.Module, given: Optimizer, mapped: ResidualMap | None, steps: int
) -> Trial | None:
    """The best trial of copies of a network over several rates; None if all hardly lower the loss."""
    begun: list[tuple[Trial, nn.Module, Optimizer]] = []
    for factor in FACTORS:
        trainee = copied(network)
        optimizer = optimizer_like(given, trainee, factor, mapped)
        begun.append((stepped(exam, trainee, optimizer, min(SCREEN, steps)), trainee, optimizer))
    # The two rates that begin best go on, the second only if the first fails.
    for first, trainee, optimizer in sorted(begun, key=lambda trial: trial[0].end)[:2]:
        trial = stepped(exam, trainee, optimizer, steps, first) if first.progress > 0 else first
        if MUCH < trial.progress < WELL:
            # A loss that falls slowly may rise again: a cure is offered for what it reaches.
            trial = stepped(exam, trainee, optimizer, LONGER * steps, trial)
        if trial.progress > MUCH:
            return trial
    return None


def treated(model: nn.Module, name: str, inputs: object, mapped: ResidualMap | None = None) -> nn.Module:
    """A copy with frozen norms, or converted by a scheme."""
    positional, named = arguments_of(inputs)
    return freeze(model) if name == FREEZE else convert(model, name, *positional, residual_map=mapped, **named)


def optimizer_like(
    given: Optimizer, network: nn.Module, factor: float = 1.0, mapped: ResidualMap | None = None
) -> Optimizer:
    """An optimizer of the class and settings of another one for a network, at its largest rate times `factor`."""
    rate = factor * max(group["lr"] for group in given.param_groups)
    takes = inspect.signature(type(given)).parameters
    defaults = {name: value for name, value in given.defaults.items() if name in takes}
    decay = defaults.get("weight_decay", 0.0)
    if mapped is None:
        return type(given)(network.parameters(), **defaults | {"lr": rate})
    groups = param_groups(network, lr=rate, weight_decay=decay, residual_map=mapped)
    return type(given)(groups, **defaults | {"lr": rate})
