"""Trial steps on copies: whether the optimizer lowers the loss of one batch, at its own or another rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf, isfinite, sqrt
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from normless._internal.copying import copied
from normless.doctor._findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import (
    CLEARLY,
    LEFT_OF_LOSS,
    LITTLE,
    MANY,
    MUCH,
    RATE,
    Experiment,
    Trial,
    best_rate,
    scheduled_rate,
    tried,
)
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import LOSS
from normless.doctor.facts._held import DECAY, decay_per_step
from normless.doctor.facts._nonfinite import Broken, find_broken
from normless.doctor.facts._passed import pass_through
from normless.doctor.facts._tracer import tensors, with_rows

# The share of the weights' norm below which an update in float32 is not exact.
ROUNDING = 1e-6
# The share of the gradient that clipping leaves; that of low-precision weights that the first update left unchanged.
CLIPPED, ROUNDED = 1e-2, 0.5
# A trial on few examples takes this share of the batch, with at least so many examples and targets.
SHARE, EXAMPLES, TARGETS = 8, 2, 8
# A momentum from which a rate is an effective one, and a usual momentum.
MOMENTUM, USUAL = 0.99, 0.9
# Factors on a rate that does not work; a rate that is too small by a factor below a thousand is a choice.
SMALLER, LARGER = tuple(10.0**-power for power in range(1, 13)), (1e3, 1e4, 1e5, 1e6, 1e7)
# Further factors if the first update is below this share of the norm of the weights.
MUCH_LARGER, UNMOVED = tuple(10.0**power for power in range(8, 15)), 1e-9
# A loss within this share of the loss of the best constant outputs counts as guessing.
NEAR = 0.03
# A finding of at least this severity explains a loss that does not fall.
CAUSE = 0.7
# Factors on the rate after which a batch counts as one that cannot be fitted; FEW if a cause is known.
ALL, FEW = (1.0, 10.0, 0.1, 100.0, 0.01, 1e3, 1e-3), 3
# The number of steps at the best of these rates before a batch is reported.
LONG = 300
# A post-norm network needs warm-up from this number of sums that are followed by a norm.
POST_NORM = 24
# A loss that stays below this multiple of the first loss before it is not finite does not diverge.
RISE = 1.5
# Names of checks, for causes that are excluded where none of them has a finding.
_CAUSES = {
    "the data": ("inputs", "scale of the inputs", "values of the targets"),
    "values that are not finite": ("finite values",),
    "the reach of the gradient": ("reach of the gradient", "operations that pass no gradient"),
    "the signal of the layers": ("signal of the layers", "gradient of the layers"),
    "the norms": ("norms", "batch statistics"),
    "the parameters of the optimizer": ("optimizer",),
}


@check("trial steps", needs="trial")
def check_trial(exam: Examination) -> Steps:
    """Take steps on the batch with copies of network and optimizer, and judge them."""
    steps = exam.steps
    if steps < 1 or not any(exam.passed.gradients.values()):
        raise NotAsked(f"not tried: {'0 steps were requested' if steps < 1 else 'there is no gradient'}")
    if not isfinite(exam.passed.loss):
        raise NotAsked("not tried: the loss is not finite")
    if exam.optimizer is None:
        if not _fits_few(exam, steps):
            yield from _judge_fit(exam, Trial(RATE, (exam.passed.loss,)), steps)
        raise NotAsked(f"no optimizer was given: AdamW at rate {RATE} and others was tried until the loss fell")
    if not any(map(scheduled_rate, exam.optimizer.param_groups)):
        raise NotAsked("not tried: every learning rate is 0")
    model, trial = tried(exam, exam.optimizer, steps)
    exam.trials.append(trial)
    yield from _judge_update(exam, exam.optimizer, trial)
    yield from _judge_rate(exam, exam.optimizer, trial, steps)
    if closed := _closed(exam, model, trial):
        evidence = {"shut": len(closed), "blocks": exam.depth, "steps": steps, "rate": trial.rate}
        yield finding("branch_never_grows", closed, evidence, grade=len(closed) / exam.depth)
    words = ("1 step", "takes") if trial.steps == 1 else (f"{trial.steps} steps", "take")
    fell = f"from {trial.losses[0]:.3g} to {trial.losses[-1]:.3g}"
    return f"{words[0]} at rate {trial.rate:.3g} {words[1]} the loss {fell}"


def _closed(exam: Examination, trained: nn.Module, trial: Trial) -> list[str]:
    """Return the blocks with a branch that is zero before and after a trial; empty if the trial diverged."""
    if not isfinite(trial.losses[-1]) or exam.map is None or not _zeros(exam.passed.tables["signal"]):
        return []
    return _zeros(pass_through(trained, exam.inputs, exam.targets, exam.loss, exam.map).tables["signal"])


def _zeros(signal: pd.DataFrame) -> list[str]:
    return list(signal.loc[signal["branch_variance"] == 0, "name"])


def _judge_update(exam: Examination, optimizer: Optimizer, trial: Trial) -> Iterator[Finding]:
    """Check decay, clipping and rounding, which another rate does not repair."""
    if (per_step := decay_per_step(optimizer)) > DECAY:
        decay = max(float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups)
        yield finding("excessive_decay", (), {"decay": decay, "per_step": per_step})
    expected = trial.rate * _gradient(exam)
    # A smaller update is rounded away.
    is_exact = expected > ROUNDING * _weights_norm(exam)
    if isinstance(optimizer, SGD) and is_exact and trial.moved < CLIPPED * expected:
        yield finding("clipped_to_nothing", (), {"moved": trial.moved, "expected": expected})
    if trial.rounded > ROUNDED and trial.progress < LITTLE:
        yield finding("lost_in_rounding", (), {"share": trial.rounded, "rate": trial.rate})


def _gradient(exam: Examination) -> float:
    """Return the norm of the gradient before hooks change it; copies of parameters have no hooks."""
    passed = exam.passed
    if any(getattr(own, "_backward_hooks", None) for own in exam.trained):
        passed = pass_through(copied(exam.model), exam.inputs, exam.targets, exam.loss, None)
    return sqrt(sum(norm**2 for norm in passed.gradients.values() if norm))


def _weights_norm(exam: Examination) -> float:
    return sqrt(sum(float(torch.linalg.vector_norm(own.detach())) ** 2 for own in exam.trained))


def _judge_rate(exam: Examination, optimizer: Optimizer, trial: Trial, steps: int) -> Iterator[Finding]:
    """Try other rates if that of a trial does not lower the loss."""
    evidence: dict[str, Any] = {"rate": trial.rate, **trial.evidence}
    momentum = max(_momentum(group) for group in optimizer.param_groups)
    if momentum >= MOMENTUM:
        evidence |= {"momentum": momentum, "effective_rate": trial.rate / max(1 - momentum, 1e-12)}
    sums = sum(any(layer.kind == "norm" for layer in block.after_sum) for block in exam.blocks)
    if sums >= POST_NORM and trial.progress < 0.5:
        yield finding("post_norm_depth", (), evidence | {"sums": sums})
        return
    rises, is_flat = trial.progress < -LITTLE, abs(trial.progress) < LITTLE
    if is_flat and momentum >= MOMENTUM:
        yield finding("effective_rate", (), evidence, settings=_usual_momentum(optimizer))
        return
    if _breaks_while_falling(trial) and (broken := _broken(exam, trial)) is not None:
        yield broken
        return
    if (rises or is_flat) and trial.end <= LEFT_OF_LOSS * exam.guessing:
        # A trained network has little left to learn.
        return
    if rises or is_flat:
        larger = (*LARGER, *MUCH_LARGER) if trial.moved < UNMOVED * _weights_norm(exam) else LARGER
        factors, share = (SMALLER, LITTLE) if rises else (larger, MUCH)
        best = best_rate(exam, lambda factor: Experiment(factor=factor), factors, steps, needs=share, continues=share)
        if best is not None:
            kind = "rate_too_small" if is_flat else "effective_rate" if momentum >= MOMENTUM else "rate_too_large"
            evidence |= {"working_rate": best.rate, "loss_at_working_rate": best.losses[-1]}
            yield finding(kind, (), evidence | {"working_steps": best.steps}, settings={"lr": best.rate})
            return
        if not isfinite(trial.end) and (broken := _broken(exam, trial)) is not None:
            yield broken
            return
    yield from _judge_fit(exam, trial, steps)


def _breaks_while_falling(trial: Trial) -> bool:
    """Whether the loss is no longer finite after it had fallen, without a rise that a large rate would cause."""
    finite = [loss for loss in trial.losses if isfinite(loss)]
    ends = not isfinite(trial.losses[-1])
    return ends and len(finite) > 1 and finite[-1] < finite[0] and max(finite) <= RISE * abs(finite[0])


def _broken(exam: Examination, trial: Trial) -> Finding | None:
    """Return the first operation that makes a value that is not finite after the steps of a trial."""

    def after(steps: int) -> Broken | None:
        model, _ = tried(exam, exam.optimizer, steps)
        return find_broken(model, exam.inputs, exam.targets, exam.loss, training=True)

    steps = trial.steps
    broken = after(steps)
    if broken is not None and broken.call.kind in ("parameter", "buffer") and steps > 1:
        # The gradient of the step before was not finite.
        steps -= 1
        broken = after(steps - 1)
    if broken is None or broken.call.kind != "call":
        return None
    call = broken.call
    evidence = {"what": broken.what, "operation": call.name, "value": broken.value, "line": broken.line}
    words: dict[str, Any] = {"does": broken.does, "reads": broken.all_reads, "place": broken.place, "grade": 0.0}
    words["mode"] = f" after {steps} {'step' if steps == 1 else 'steps'} at rate {trial.rate:.3g}"
    return finding("first_not_finite", () if call.path == LOSS else (call.place,), evidence, **words)


def _judge_fit(exam: Examination, trial: Trial, steps: int) -> Iterator[Finding]:
    """Report a batch if many steps at many rates do not take its loss below that of guessing.

    If a cause is known, fewer rates are tried.
    """
    guessing, is_known = (exam.guessing, True) if isfinite(exam.guessing) else (trial.losses[0], False)
    if trial.steps and (trial.end < guessing - CLEARLY * abs(guessing) or trial.rounded > ROUNDED):
        return
    # Constant outputs say nothing if the loss does not read outputs, or if no others are better.
    if is_known and not exam.lowest < guessing - NEAR * abs(guessing):
        guessing, is_known = trial.losses[0], False
    goal = guessing - NEAR * abs(guessing)
    lowest = min(filter(isfinite, trial.losses))
    # A surrogate of a policy's return has the same value for all outputs.
    is_lowest = isfinite(exam.guessing) and exam.lowest >= goal
    ascends = any(group.get("maximize") for group in exam.optimizer.param_groups) if exam.optimizer else False
    # Too few parameters cannot memorize the batch.
    is_small = exam.passed.logits.dim() and sum(own.numel() for own in exam.trained) < len(exam.passed.logits)
    if lowest < goal or is_lowest or ascends or is_small:
        return
    is_explained = any(known.severity >= CAUSE and not known.advice for known in exam.found)
    number, ends = max(MANY, steps), dict[float, float]()
    for factor in (*(ALL[:FEW] if is_explained else ALL), None):
        if factor is None:
            if is_explained or not ends:
                break
            # Some losses, such as that of CTC, stay near that of guessing for many steps before they fall.
            factor, number = min(ends, key=ends.__getitem__), LONG
        _, attempt = tried(exam, exam.optimizer, number, Experiment(factor=factor), goal)
        # The loss may rise again if the rate is too large.
        lowest = min(filter(isfinite, [lowest, *attempt.losses]), default=inf)
        ends[factor] = attempt.end
        if lowest < goal:
            return
    rates = [factor * trial.rate for factor in ends]
    evidence: dict[str, Any] = {"steps": number, "loss_before": trial.losses[0], "rate": trial.rate}
    evidence |= {"best": lowest, "lowest_rate": min(rates), "highest_rate": max(rates), "loss_of_guessing": guessing}
    known = "the best constant outputs have a loss of" if is_known else "the first loss is"
    fine = [
        cause
        for cause, checks in _CAUSES.items()
        if exam.fine.intersection(checks) and not exam.faulty.intersection(checks)
    ]
    excluded = ", ".join(["the rate", *fine])
    yield finding("not_fitted", (), evidence, excluded=excluded, reference=f"{known} {guessing:.3g}")


def _usual_momentum(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of a usual momentum."""
    betas = optimizer.param_groups[0].get("betas")
    return {"momentum": USUAL} if betas is None else {"betas": (USUAL, *betas[1:])}


def _momentum(group: dict[str, Any]) -> float:
    return float(group.get("betas", (group.get("momentum", 0.0),))[0])


def _fits_few(exam: Examination, steps: int) -> bool:
    """Whether `steps` steps on a few examples take their loss below that of the best constant outputs."""
    part = _few_of(exam)
    if part is None or not isfinite(part.guessing):
        return False
    goal = part.guessing - NEAR * abs(part.guessing)
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        return any(loss < goal for loss in tried(part, None, steps, goal=goal)[1].losses)
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
    parts = (exam.inputs, exam.targets, exam.passed.output)
    # The outputs of the recorded pass are those of its examples.
    part = exam.of_batch(*(with_rows(values, count, list(range(number))) for values in parts))
    return part if part is not None and len(part.passed.logits) == number else None
