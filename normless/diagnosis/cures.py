"""Cures, tried before they are offered: copies with other norms or none, which take the same trial steps."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace

from torch import nn
from torch.optim import SGD, Optimizer

from normless.arguments import arguments_of
from normless.conversion import convert, plan, scheme_of
from normless.copying import copied
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Cure, Finding
from normless.diagnosis.trial import MUCH, SCREEN, Trial, stepped
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


def with_tried_cures(e: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Findings whose schemes lower the loss, ordered by the loss they reach; without steps, all that fit."""
    if scheme_of(e.model) is not None:
        return [replace(one, cure=replace(one.cure, schemes=_schemes(one.cure.schemes))) for one in findings]
    trials: dict[str, Trial | None] = {}
    cures: dict[int, Cure] = {}
    # Of the most severe finding two cures that work well; of others one, which may be one of these.
    needed, share = ENOUGH, WELL
    for one in sorted(findings, key=lambda one: -one.severity):
        names = one.cure.schemes
        for name in names if steps else ():
            known = [trial for name in names if (trial := trials.get(name)) and trial.progress > share]
            if len(known) < needed and name not in trials:
                trials[name] = try_cure(e, name, steps)
        if steps and names:
            cures[id(one)] = _ranked(one.cure, {name: trial for name in names if (trial := trials.get(name))})
            needed, share = 1, MUCH
        else:
            fitting = tuple(name for name in _schemes(names) if _fits(e, name))
            cures[id(one)] = replace(one.cure, schemes=fitting)
    return [replace(one, cure=cures[id(one)]) for one in findings]


def _schemes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name != FREEZE)


def _fits(e: Examination, scheme: str) -> bool:
    positional, named = arguments_of(e.inputs)
    with suppress(NormlessError):
        plan(e.model, scheme, *positional, residual_map=e.map, **named)
        return e.map is not None
    return False


def _ranked(cure: Cure, tried: dict[str, Trial]) -> Cure:
    losses = dict(sorted(((name, trial.end) for name, trial in tried.items()), key=lambda pair: pair[1]))
    best = next(iter(losses), None)
    if best is None:
        return replace(
            cure, words=f"none of {', '.join(cure.schemes)} lowered the loss in the trial, or fits it", schemes=()
        )
    first, known = tried[best], cure.words
    if best != FREEZE:
        known = known.replace(repr(cure.schemes[0]), repr(best))
    words = (
        f"{known}; {first.steps} trial steps of {best} at rate {first.rate:.3g} take the loss from "
        f"{first.losses[0]:.3g} to {first.losses[-1]:.3g}"
    )
    return Cure(words, _schemes(tuple(losses)), losses)


def try_cure(e: Examination, name: str, steps: int) -> Trial | None:
    """The best trial of a treated copy over several rates; None if it does not fit or hardly lowers the loss."""
    if e.map is None:
        return None
    with suppress(NormlessError):
        network = treated(e.model, name, e.inputs, e.map)
        given = e.optimizer or SGD(e.model.parameters(), RATE, MOMENTUM)
        positional, named = arguments_of(e.inputs)
        mapped = residual_map(network, *positional, **named)
        begun: list[tuple[Trial, nn.Module, Optimizer]] = []
        for factor in FACTORS:
            trainee = copied(network)
            optimizer = optimizer_like(given, trainee, factor, mapped)
            begun.append((stepped(e, trainee, optimizer, min(SCREEN, steps)), trainee, optimizer))
        # The two rates that begin best go on, the second only if the first fails.
        for first, trainee, optimizer in sorted(begun, key=lambda one: one[0].end)[:2]:
            trial = stepped(e, trainee, optimizer, steps, first) if first.progress > 0 else first
            if MUCH < trial.progress < WELL:
                # A loss that falls slowly may rise again: a cure is offered for what it reaches.
                trial = stepped(e, trainee, optimizer, LONGER * steps, trial)
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
    groups = param_groups(network, lr=rate, weight_decay=decay, residual_map=mapped)
    return type(given)(groups, **defaults | {"lr": rate})
