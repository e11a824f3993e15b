"""Judge the learning rate of a trial, search a better one, and report a batch that no rate fits."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, sqrt
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from normless.doctor.experiments.steps import LEFT_OF_LOSS, Trial, tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS
from normless.doctor.facts.nonfinite import find_broken
from normless.doctor.findings import Finding, finding

# A trial that lowers the loss by less than the first share does not make progress; by more than the second, it does.
LITTLE, MUCH = 0.01, 0.2
# A momentum from which a rate is an effective one, and a usual momentum.
MOMENTUM, USUAL = 0.99, 0.9
# The share of low-precision weights that the first update left unchanged.
ROUNDED = 0.5
# Factors on a rate that does not work; a rate that is too small by a factor below a thousand is a choice.
SMALLER, LARGER = tuple(10.0**-power for power in range(1, 13)), (1e3, 1e4, 1e5, 1e6, 1e7)
# Further factors if the first update is below this share of the norm of the weights.
MUCH_LARGER, UNMOVED = tuple(10.0**power for power in range(8, 15)), 1e-9
# The factors between the best of these rates and its neighbors.
BETWEEN = (10**0.5, 10**-0.5)
# The number of rates, the best first, that are compared by longer trials.
CONTINUED = 3
# A loss within this share of the loss of the best constant outputs counts as guessing.
NEAR = 0.03
# A trial that ends below it by this share needs no further steps.
CLEARLY = 0.3
# A finding of at least this severity explains a loss that does not fall.
CAUSE = 0.7
# Factors on the rate, and steps, after which a batch counts as one that cannot be fitted; FEW factors if a cause is
# known.
ALL, FEW, MANY = (1.0, 10.0, 0.1, 100.0, 0.01, 1e3, 1e-3), 3, 60
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


def judge_rate(exam: Examination, trial: Trial, steps: int) -> Iterator[Finding]:
    """Try other rates if that of a trial does not lower the loss."""
    assert exam.optimizer is not None
    momentum = max(_momentum(group) for group in exam.optimizer.param_groups)
    evidence = {"rate": trial.rate, "steps": trial.steps, "loss_before": trial.losses[0], "loss_after": trial.last}
    effective = {"momentum": momentum, "effective_rate": trial.rate / max(1 - momentum, 1e-12)}
    sums = sum(any(layer.kind == "norm" for layer in block.after_sum) for block in exam.blocks)
    if sums >= POST_NORM and trial.progress < 0.5:
        yield finding("post_norm_depth", (), evidence | {"sums": sums})
        return
    if abs(trial.progress) < LITTLE and momentum >= MOMENTUM:
        yield finding("effective_rate", (), evidence | effective, settings=_usual_momentum(exam.optimizer))
        return
    if _breaks_while_falling(trial) and (broken := _broken(exam, trial)) is not None:
        yield broken
        return
    rises, is_flat = trial.progress < -LITTLE, abs(trial.progress) < LITTLE
    if (rises or is_flat) and trial.end <= LEFT_OF_LOSS * exam.guessing:
        # A trained network has little left to learn.
        return
    if rises or is_flat:
        best = _best_rate(exam, steps, SMALLER if rises else _larger(exam, trial), LITTLE if rises else MUCH)
        if best is not None:
            kind = "rate_too_large" if rises else "rate_too_small"
            evidence |= {"working_rate": best.rate, "loss_at_working_rate": best.losses[-1]}
            evidence |= {"working_steps": best.steps}
            if kind == "rate_too_large" and momentum >= MOMENTUM:
                kind, evidence = "effective_rate", evidence | effective
            yield finding(kind, (), evidence, settings={"lr": best.rate})
            return
        if not isfinite(trial.end) and (broken := _broken(exam, trial)) is not None:
            yield broken
            return
    yield from judge_fit(exam, exam.optimizer, trial, steps)


def _larger(exam: Examination, trial: Trial) -> tuple[float, ...]:
    """Return the factors to try on a rate that may be too small: more of them if the weights hardly moved."""
    return (*LARGER, *MUCH_LARGER) if trial.moved < UNMOVED * weights_norm(exam.model) else LARGER


def weights_norm(model: nn.Module) -> float:
    """Return the Euclidean norm of all trainable parameters."""
    trained = (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    return sqrt(sum(float(torch.linalg.vector_norm(parameter)) ** 2 for parameter in trained))


def _best_rate(exam: Examination, steps: int, factors: tuple[float, ...], share: float) -> Trial | None:
    """Return the trial with the lowest loss: at the first rates that work, and between them; None if none does.

    A rate works if it lowers the loss by a share. Upwards no rate is tried after one at which the loss rises.
    """
    given = exam.optimizer
    assert given is not None
    working: list[tuple[Trial, float]] = []

    def attempted(factor: float) -> Trial:
        _, attempt = tried(exam, given, steps, factor)
        # A single low loss among the last ones is not progress.
        if attempt.progress > share and max(attempt.losses[-3:]) < attempt.losses[0]:
            working.append((attempt, factor))
        return attempt

    for factor in factors:
        known = [trial.end for trial, _ in working]
        attempt = attempted(factor)
        if (known and attempt.end >= min(known)) or (factor > 1 and attempt.progress < -LITTLE):
            break
    if not working:
        return None
    best = min(working, key=lambda pair: pair[0].end)[1]
    for between in BETWEEN:
        attempted(best * between)
    # A loss may rise again after more steps.
    working.sort(key=lambda pair: pair[0].end)
    longer = [tried(exam, given, max(MANY, steps), factor)[1] for _, factor in working[:CONTINUED]]
    return min(longer, key=lambda trial: trial.end)


def _breaks_while_falling(trial: Trial) -> bool:
    """Whether the loss is no longer finite after it had fallen, without a rise that a large rate would cause."""
    finite = [loss for loss in trial.losses if isfinite(loss)]
    ends = not isfinite(trial.losses[-1])
    return ends and len(finite) > 1 and finite[-1] < finite[0] and max(finite) <= RISE * abs(finite[0])


def _broken(exam: Examination, trial: Trial) -> Finding | None:
    """Return the first operation that makes a value that is not finite after the steps of a trial."""
    assert exam.optimizer is not None
    steps = trial.steps
    model, _ = tried(exam, exam.optimizer, steps)
    broken = find_broken(model, exam.inputs, exam.targets, exam.loss, training=True)
    if broken is not None and broken.call.kind in ("parameter", "buffer") and steps > 1:
        # The gradient of the step before was not finite.
        steps -= 1
        model, _ = tried(exam, exam.optimizer, steps - 1)
        broken = find_broken(model, exam.inputs, exam.targets, exam.loss, training=True)
    if broken is None or broken.call.kind != "call":
        return None
    call = broken.call
    evidence = {"what": broken.what, "operation": call.name, "value": broken.value, "line": broken.line}
    mode = f" after {steps} {'step' if steps == 1 else 'steps'} at rate {trial.rate:.3g}"
    words: dict[str, Any] = {
        "grade": 0.0,
        "mode": mode,
        "does": broken.does,
        "reads": broken.all_reads,
        "place": broken.place,
    }
    return finding("first_not_finite", () if call.path == LOSS else (call.place,), evidence, **words)


def judge_fit(exam: Examination, given: Optimizer, trial: Trial, steps: int) -> Iterator[Finding]:
    """Report a batch if many steps at many rates do not take its loss below that of guessing.

    If a cause is known, fewer rates are tried.
    """
    if any(group.get("maximize") for group in given.param_groups):
        return
    is_known = isfinite(exam.guessing)
    guessing = exam.guessing if is_known else trial.losses[0]
    if trial.steps and (trial.end < guessing - CLEARLY * abs(guessing) or trial.rounded > ROUNDED):
        return
    # Constant outputs say nothing if the loss does not read outputs, or if no others are better.
    if is_known and not exam.lowest < guessing - NEAR * abs(guessing):
        is_known, guessing = False, trial.losses[0]
    goal = guessing - NEAR * abs(guessing)
    # A surrogate of a policy's return has the same value for all outputs.
    if trial.losses[0] < goal or (isfinite(exam.guessing) and exam.lowest >= goal):
        return
    trained = sum(parameter.numel() for parameter in exam.model.parameters() if parameter.requires_grad)
    if exam.passed.logits.dim() and trained < len(exam.passed.logits):
        # It has too few parameters to memorize the batch.
        return
    is_explained = any(known.severity >= CAUSE and not known.advice for known in exam.found)
    lowest, number = min(filter(isfinite, trial.losses)), max(MANY, steps)
    if lowest < goal:
        # The trial has shown it.
        return
    ends: dict[float, float] = {}
    factors = ALL[:FEW] if is_explained else ALL
    for factor in (*factors, None):
        if factor is None:
            if is_explained or not ends:
                break
            # Some losses, such as that of CTC, stay near that of guessing for many steps before they fall.
            factor, number = min(ends, key=ends.__getitem__), LONG
        _, attempt = tried(exam, given, number, factor, goal)
        # The loss may rise again if the rate is too large.
        lowest = min(filter(isfinite, [lowest, *attempt.losses]), default=inf)
        ends[factor] = attempt.end
        if lowest < goal:
            return
    rates = [factor * trial.rate for factor in ends]
    evidence: dict[str, Any] = {"steps": number, "loss_before": trial.losses[0], "rate": trial.rate}
    evidence |= {"best": lowest, "lowest_rate": min(rates), "highest_rate": max(rates), "loss_of_guessing": guessing}
    known = "the best constant outputs have a loss of" if is_known else "the first loss is"
    yield finding("not_fitted", (), evidence, excluded=_excluded(exam), reference=f"{known} {guessing:.3g}")


def _excluded(exam: Examination) -> str:
    """Return the causes that no check found, as a list in words."""
    fine = [
        cause
        for cause, checks in _CAUSES.items()
        if exam.fine.intersection(checks) and not exam.faulty.intersection(checks)
    ]
    return ", ".join(["the rate", *fine])


def _usual_momentum(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of a usual momentum."""
    betas = optimizer.param_groups[0].get("betas")
    return {"momentum": USUAL} if betas is None else {"betas": (USUAL, *betas[1:])}


def _momentum(group: dict[str, object]) -> float:
    betas = group.get("betas", (group.get("momentum", 0.0),))
    assert isinstance(betas, (tuple, list))
    return float(betas[0])
