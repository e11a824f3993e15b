"""Cures by schemes, tried before they are offered: converted copies that take the same trial steps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from math import isfinite

from torch import nn
from torch.optim import SGD, Optimizer

from normless.arguments import arguments_of
from normless.conversion import convert, plan, scheme_of
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Cure, Finding
from normless.diagnosis.trial import MUCH, Trial, stepped
from normless.errors import NormlessError
from normless.optim import param_groups
from normless.residual import ResidualMap, residual_map

RATE, MOMENTUM = 0.1, 0.9
FACTORS = (1.0, 0.1, 0.01, 10.0)
# Of a finding's schemes, that lower the loss.
ENOUGH = 2
# A trial that lowers the loss by this share needs no other rate.
WELL = 0.5


def with_tried_cures(e: Examination, findings: list[Finding], steps: int) -> list[Finding]:
    """Findings whose schemes lower the loss, ordered by the loss they reach; without steps, all that fit."""
    if scheme_of(e.model) is not None:
        return findings
    if not steps:
        kept = [tuple(scheme for scheme in one.cure.schemes if _fits(e, scheme)) for one in findings]
        return [replace(one, cure=replace(one.cure, schemes=some)) for one, some in zip(findings, kept, strict=True)]
    trials: dict[str, Trial | None] = {}
    cured = []
    for one in findings:
        for scheme in one.cure.schemes:
            if sum(trials.get(name) is not None for name in one.cure.schemes) < ENOUGH:
                trials[scheme] = trials[scheme] if scheme in trials else try_scheme(e, scheme, steps)
        tried = {scheme: trial for scheme, trial in trials.items() if trial is not None}
        cured.append(replace(one, cure=_ranked(one, tried)) if one.cure.schemes else one)
    return cured


def _fits(e: Examination, scheme: str) -> bool:
    positional, named = arguments_of(e.inputs)
    with suppress(NormlessError):
        plan(e.model, scheme, *positional, residual_map=e.map, **named)
        return True
    return False


def _ranked(one: Finding, tried: dict[str, Trial]) -> Cure:
    known = {scheme: tried[scheme] for scheme in one.cure.schemes if scheme in tried}
    best = sorted(known, key=lambda scheme: known[scheme].end)
    losses = {scheme: known[scheme].end for scheme in best}
    words = one.cure.words
    if best:
        first = known[best[0]]
        words += (
            f"; {len(first.losses) - 1} trial steps of {best[0]} at rate {first.rate:.3g} take the loss from "
            f"{first.losses[0]:.3g} to {first.losses[-1]:.3g}"
        )
    else:
        words = f"none of {', '.join(one.cure.schemes)} lowered the loss in the trial, or fits this network"
    return replace(one.cure, words=words, schemes=tuple(best), losses=losses)


def try_scheme(e: Examination, scheme: str, steps: int) -> Trial | None:
    """The best trial of a converted copy over several rates; None if it does not fit or hardly lowers the loss."""
    positional, named = arguments_of(e.inputs)
    with suppress(NormlessError):
        network = convert(e.model, scheme, *positional, residual_map=e.map, **named)
        mapped = residual_map(network, *positional, **named)
        trials: list[Trial] = []
        for copied, optimizer in _copies(e, network, mapped):
            trials.append(stepped(e, copied, optimizer, steps, mapped))
            if trials[-1].progress > WELL:
                break
        best = min(trials, key=lambda trial: trial.end)
        if isfinite(best.end) and best.progress > MUCH:
            return best
    return None


def _copies(e: Examination, network: nn.Module, mapped: ResidualMap) -> Iterator[tuple[nn.Module, Optimizer]]:
    """Copies of a network, each with an optimizer of the given kind at another rate."""
    for factor in FACTORS:
        copied = deepcopy(network)
        if e.optimizer is not None:
            yield copied, optimizer_like(e.optimizer, copied, factor, mapped)
        else:
            groups = param_groups(copied, lr=RATE * factor, weight_decay=0.0, residual_map=mapped)
            yield copied, SGD(groups, lr=RATE * factor, momentum=MOMENTUM)


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
