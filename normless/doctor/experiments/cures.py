"""Try cures before they are offered: converted copies take the same trial steps."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite

from torch import nn
from torch.optim import SGD, Optimizer

from normless._internal.arguments import arguments_of
from normless._internal.copying import copied
from normless.conversion import convert, plan, scheme_of
from normless.doctor.experiments.rates import BETWEEN, LITTLE, MANY, MUCH
from normless.doctor.experiments.steps import SCREEN, Trial, copies, fits, set_groups, stepped
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.held import Together
from normless.doctor.findings import REFUTABLE, Cure, Finding, OverBudget
from normless.errors import NormlessError
from normless.folding import freeze
from normless.optim import param_groups
from normless.probes import preserve_random_state, takes_closure
from normless.residual import ResidualMap, residual_map

RATE, MOMENTUM = 0.1, 0.9
FACTORS = (1.0, 0.1, 0.01, 10.0)
# A cure in the list of schemes that is not a scheme: norms at their running statistics.
FREEZE = "nl.freeze(model)"
# Another one: weights of variance 2 / fan-in and biases of zero in all layers.
INITIALIZE = "nn.init.kaiming_normal_(weight)"
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
        names = finding.cure.schemes
        for name in names if steps and not finding.advice else ():
            known = [trial for name in names if (trial := trials.get(name)) and trial.progress > share]
            if len(known) < needed and name not in trials:
                with suppress(OverBudget):
                    trials[name] = try_cure(exam, name, steps)
        with suppress(OverBudget):
            if steps and finding.cure.settings and not finding.advice:
                cures[id(finding)] = _with_settings(exam, finding.cure)
            elif any(name in trials for name in names) and not finding.advice:
                tried = {name: trial for name in names if (trial := trials.get(name))}
                control = None if finding.kind in OF_EVALUATION else _control(exam, steps)
                cures[id(finding)] = _ranked(finding.cure, tried, control, exam.optimizer is not None)
                needed, share = 1, MUCH
        if id(finding) not in cures:
            proposed = replace(finding.cure, schemes=tuple(name for name in names if name != INITIALIZE))
            fitting = tuple(name for name in proposed.schemes if _fits(exam, name))
            cures[id(finding)] = replace(proposed, words=_words(proposed, fitting), schemes=_schemes(fitting))
    return [replace(finding, cure=cures[id(finding)]) for finding in findings]


def _outranked(exam: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Return findings that a fit refutes, as those in the signal, as advice if trial steps fit the batch."""
    refutable = [finding for finding in findings if finding.kind in REFUTABLE and not finding.advice]
    if not refutable or not steps or not isfinite(exam.passed.loss) or not any(exam.passed.gradients.values()):
        return findings
    if not any(fits(exam, trial) for trial in exam.trials):
        control = None
        with suppress(OverBudget):
            control = _control(exam, steps)
        if control is None or not fits(exam, control):
            return findings
    return [replace(finding, advice=finding.advice or finding.kind in REFUTABLE) for finding in findings]


def _control(exam: Examination, steps: int) -> Trial | None:
    """Return the best trial of the unchanged network over several rates, made once; None if all hardly help."""
    if exam.control is None:
        given = exam.optimizer or SGD(exam.model.parameters(), RATE, MOMENTUM)
        exam.control = (_best_trial(exam, exam.model, given, exam.map, steps, LITTLE, 2 * MANY),)
    (control,) = exam.control
    return control  # type: ignore[no-any-return]


def _schemes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in (FREEZE, INITIALIZE))


def _of_original(cure: Cure) -> Cure:
    """Return the cure for a converted network: its schemes apply to the network before the conversion."""
    names = _schemes(cure.schemes)
    words = f"{cure.words}: convert the original, nl.convert(original, {names[0]!r}, inputs)" if names else cure.words
    return replace(cure, words=words, schemes=names)


def _words(cure: Cure, fitting: tuple[str, ...]) -> str:
    """Return a cure in words, with the call of the first scheme that fits."""
    if not fitting:
        none = f"; none of its schemes fits this network ({', '.join(cure.schemes)})" if cure.schemes else ""
        return f"{cure.words}{none}"
    others = f", or instead {', '.join(map(repr, fitting[1:]))}" if fitting[1:] else ""
    return f"{cure.words}: {_call(fitting[0])}{others}"


def _call(name: str) -> str:
    return name if name in (FREEZE, INITIALIZE) else f"nl.convert(model, {name!r}, inputs)"


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


def _with_settings(exam: Examination, cure: Cure) -> Cure:
    """Return a cure by settings with the result of trial steps, and without the settings if they do not help."""
    assert exam.optimizer is not None
    model, optimizer = copies(exam, exam.optimizer)
    set_groups(optimizer, cure.settings)
    trial = stepped(exam, model, optimizer, MANY)
    steps = f"{trial.steps} trial steps with it take the loss from {trial.losses[0]:.3g} to {trial.last:.3g}"
    if trial.progress > LITTLE:
        return replace(cure, words=f"{cure.words}; {steps}", is_tried=True)
    return replace(cure, words=f"{cure.words}, which is not enough: {steps}", settings={}, is_tried=True)


def _ranked(cure: Cure, tried: dict[str, Trial], control: Trial | None = None, has_rate: bool = False) -> Cure:
    """Return the cure with the schemes that reach a lower loss than the unchanged network at its best rate.

    If the training has an optimizer, the rate belongs to the cure.
    """
    limit = inf if control is None else BETTER * control.end
    kept = {name: trial for name, trial in tried.items() if trial.end < limit}
    losses = dict(sorted(((name, trial.end) for name, trial in kept.items()), key=lambda pair: pair[1]))
    best = next(iter(losses), None)
    if best is None and control is not None:
        before, after = control.losses[0], control.losses[-1]
        names = f", and none of {', '.join(cure.schemes)} reaches a lower one" if cure.schemes else ""
        words = (
            f"{cure.words}; or use a learning rate of {control.rate:.2g}: {control.steps} steps of the unchanged "
            f"network take the loss from {before:.3g} to {after:.3g}{names}"
        )
        return replace(
            cure, words=words, schemes=(), settings={"lr": control.rate} if has_rate else {}, is_tried=True
        )
    if best is None:
        names = ", ".join(cure.schemes)
        words = f"{cure.words}; none of {names} fits the network and lowers the loss in the trial"
        return replace(cure, words=words, schemes=(), is_tried=True)
    first = tried[best]
    words = (
        f"{cure.words}: {_call(best)}; {first.steps} trial steps with it at rate {first.rate:.3g} take the loss "
        f"from {first.losses[0]:.3g} to {first.losses[-1]:.3g}"
    )
    return Cure(words, _schemes(tuple(losses)), losses, {"lr": first.rate} if has_rate else {}, is_tried=True)


def try_cure(exam: Examination, name: str, steps: int) -> Trial | None:
    """Return the best trial of a treated copy over several rates; None if it does not fit or hardly helps."""
    given = exam.optimizer or SGD(exam.model.parameters(), RATE, MOMENTUM)
    if name == INITIALIZE:
        return _best_trial(exam, initialized(exam.model), given, exam.map, steps)
    if exam.map is None:
        return None
    with suppress(NormlessError):
        network = treated(exam.model, name, exam.inputs, exam.map)
        positional, named = arguments_of(exam.inputs)
        return _best_trial(exam, network, given, residual_map(network, *positional, **named), steps)
    return None


def _best_trial(
    exam: Examination,
    network: nn.Module,
    given: Optimizer,
    mapped: ResidualMap | None,
    steps: int,
    share: float = MUCH,
    most: int = MANY,
) -> Trial | None:
    """Return the best trial of copies of a network over several rates, or None if all hardly lower the loss.

    A trial that has lowered the loss by a share is continued to `most` steps.
    """
    begun: list[tuple[Trial, nn.Module, Optimizer]] = []
    best = 1.0
    # The last two rates lie between the best of the others and its neighbors.
    for factor in (*FACTORS, *BETWEEN):
        trainee = copied(network)
        optimizer = optimizer_like(given, trainee, factor * best if factor in BETWEEN else factor, mapped)
        begun.append((stepped(exam, trainee, optimizer, min(SCREEN, steps)), trainee, optimizer))
        if factor == FACTORS[-1]:
            best = FACTORS[min(range(len(FACTORS)), key=lambda index: begun[index][0].end)]
    # The two rates that start best are continued. A loss that falls slowly may rise again: a cure is judged by the
    # loss that it reaches.
    begun = [
        (stepped(exam, trainee, optimizer, steps, first) if first.progress > 0 else first, trainee, optimizer)
        for first, trainee, optimizer in sorted(begun, key=lambda trial: trial[0].end)[:2]
    ]
    for trial, trainee, optimizer in sorted(begun, key=lambda trial: trial[0].end):
        if trial.progress > share:
            trial = stepped(exam, trainee, optimizer, max(steps, most), trial)
        if trial.progress > MUCH:
            return trial
    return None


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


def optimizer_like(
    given: Optimizer, network: nn.Module, factor: float = 1.0, mapped: ResidualMap | None = None
) -> Optimizer:
    """Create an optimizer of the class and settings of a given one, at its largest rate times `factor`."""
    rate = factor * max(group["lr"] for group in given.param_groups)
    given = given.usual if isinstance(given, Together) else given
    takes = inspect.signature(type(given)).parameters
    defaults = {name: value for name, value in given.defaults.items() if name in takes}
    decay = defaults.get("weight_decay", 0.0)
    if mapped is None or takes_closure(given):
        return type(given)(network.parameters(), **defaults | {"lr": rate})
    groups = param_groups(network, lr=rate, weight_decay=decay, residual_map=mapped)
    return type(given)(groups, **defaults | {"lr": rate})
