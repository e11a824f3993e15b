"""Trial steps on copies: whether the optimizer lowers the loss of one batch, at its own or another rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import isfinite
from typing import Any

import pandas as pd
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from normless.doctor.experiments.rates import LITTLE, NEAR, ROUNDED, judge_fit, judge_rate, weights_norm
from normless.doctor.experiments.steps import Trial, scheduled_rate, tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.passed import pass_through
from normless.doctor.facts.tracer import tensors, with_rows
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.optim import Lion, Muon
from normless.optim.muon import OF_MATRICES

# A decay of the weights by more than this share per step is not regularization.
DECAY = 0.02
# Optimizers that subtract lr · weight_decay · w in a step, whatever the size of the gradient.
_SUBTRACTS_DECAY = (SGD, AdamW, Lion, Muon, *OF_MATRICES)
# The rate of AdamW where no optimizer is given.
RATE = 1e-3
# The share of the weights' norm below which an update in float32 is not exact.
ROUNDING = 1e-6
# A trial on few examples takes this share of the batch, with at least so many examples and targets.
SHARE, EXAMPLES, TARGETS = 8, 2, 8


@check("trial steps")
def check_trial(exam: Examination, steps: int) -> Steps:
    """Take `steps` steps on the batch with copies of network and optimizer, and judge them."""
    if steps < 1 or not any(exam.passed.gradients.values()):
        raise NotAsked(f"not tried: {'0 steps were requested' if steps < 1 else 'there is no gradient'}")
    if not isfinite(exam.passed.loss):
        raise NotAsked("not tried: the loss is not finite")
    if exam.optimizer is None:
        given = AdamW(exam.trained, RATE, weight_decay=0.0)
        if not _fits_few(exam, given, steps):
            yield from judge_fit(exam, given, Trial(RATE, (exam.passed.loss,)), steps)
        raise NotAsked(f"no optimizer was given: AdamW at rate {RATE} and others was tried until the loss fell")
    if not any(map(scheduled_rate, exam.optimizer.param_groups)):
        raise NotAsked("not tried: every learning rate is 0")
    model, trial = tried(exam, exam.optimizer, steps)
    exam.trials.append(trial)
    yield from _settings(exam, trial)
    yield from judge_rate(exam, trial, steps)
    if closed := _closed(exam, model, trial):
        evidence = {"shut": len(closed), "blocks": exam.depth, "steps": steps, "rate": trial.rate}
        yield finding("branch_never_grows", closed, evidence, grade=len(closed) / exam.depth)
    before, after = trial.losses[0], trial.losses[-1]
    words = ("1 step", "takes") if trial.steps == 1 else (f"{trial.steps} steps", "take")
    return f"{words[0]} at rate {trial.rate:.3g} {words[1]} the loss from {before:.3g} to {after:.3g}"


def _closed(exam: Examination, trained: nn.Module, trial: Trial) -> list[str]:
    """Return the blocks with a branch that is zero before and after a trial; empty if the trial diverged."""
    if not isfinite(trial.losses[-1]) or exam.map is None or not _zeros(exam.passed.tables["signal"]):
        return []
    return _zeros(pass_through(trained, exam.inputs, exam.targets, exam.loss, exam.map).tables["signal"])


def _zeros(signal: pd.DataFrame) -> list[str]:
    return list(signal.loc[signal["branch_variance"] == 0, "name"])


def _settings(exam: Examination, trial: Trial) -> Iterator[Finding]:
    """Check decay, clipping and rounding, which another rate does not repair."""
    assert exam.optimizer is not None
    groups = exam.optimizer.param_groups
    decay = max(group["lr"] * group.get("weight_decay", 0.0) for group in groups)
    subtracts_decay = isinstance(exam.optimizer, _SUBTRACTS_DECAY) or groups[0].get("decoupled_weight_decay", False)
    if decay > DECAY and subtracts_decay:
        evidence = {"rate": trial.rate, "decay": max(group["weight_decay"] for group in groups), "per_step": decay}
        yield finding("excessive_decay", (), evidence)
    gradient = sum(norm**2 for norm in exam.passed.gradients.values() if norm) ** 0.5
    # A smaller update is rounded away.
    is_exact = trial.rate * gradient > ROUNDING * weights_norm(exam.model)
    if isinstance(exam.optimizer, SGD) and is_exact and trial.moved < 1e-2 * trial.rate * gradient:
        evidence = {"moved": trial.moved, "expected": trial.rate * gradient}
        yield finding("clipped_to_nothing", (), evidence)
    if trial.rounded > ROUNDED and trial.progress < LITTLE:
        yield finding("lost_in_rounding", (), {"share": trial.rounded, "rate": trial.rate})


def _fits_few(exam: Examination, given: Optimizer, steps: int) -> bool:
    """Whether `steps` steps on a few examples take their loss below that of the best constant outputs."""
    part = _few_of(exam)
    if part is None or not isfinite(part.guessing):
        return False
    goal = part.guessing - NEAR * abs(part.guessing)
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        _, trial = tried(part, given, steps, goal=goal)
        return any(loss < goal for loss in trial.losses)
    return False


def _few_of(exam: Examination) -> Examination | None:
    """Return an examination of the first examples of a batch; None if it is small, or axis 0 does not hold them."""
    given, targets, logits = tensors(exam.inputs), tensors(exam.targets), exam.passed.logits
    count = len(logits) if logits.dim() else 0
    if not exam.is_divisible(count) or not all(tensor.dim() and len(tensor) == count for tensor in targets):
        return None
    labels = (targets or given)[0].numel()
    number = max(EXAMPLES, count // SHARE, -(-TARGETS * count // max(labels, 1)))
    if 2 * number > count:
        return None

    def first(values: Any) -> Any:
        return with_rows(values, count, list(range(number)))

    # The outputs of the recorded pass are those of its examples.
    part = exam.of_batch(first(exam.inputs), first(exam.targets), first(exam.passed.output))
    return part if part is not None and len(part.passed.logits) == number else None
