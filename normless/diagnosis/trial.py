"""Trial steps on copies: whether the optimizer lowers the loss of one batch, at its own or another rate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from math import inf, isfinite, nan

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless._internal.copying import copied
from normless.diagnosis.examination import Examination, pass_through
from normless.diagnosis.findings import Finding, NotAsked, Steps, check, finding
from normless.diagnosis.replay import rounded_away
from normless.probes import descend, preserve_state

# A trial that lowers the loss by less than the first share does not make progress; by more than the second, it does.
LITTLE, MUCH = 0.01, 0.2
# A decay of the weights by more than this share per step is not regularization.
DECAY = 0.02
MOMENTUM = 0.99
# The share of low-precision weights that the first update left unchanged.
ROUNDED = 0.5
# Factors on a rate that does not work; a rate that is too small by a factor below a thousand is a choice.
SMALLER, LARGER = tuple(10.0**-power for power in range(1, 13)), (1e3, 1e4, 1e5, 1e6, 1e7)
# A trial fits the batch if at most these shares remain: of the first loss, and of that of the best constant outputs.
LEFT_OF_LOSS, LEFT_OF_GUESSING = 0.1, 0.5
# A loss within this share of the loss of the best constant outputs counts as guessing.
NEAR = 0.03
# A finding of at least this severity explains a loss that does not fall.
CAUSE = 0.7
# Factors on the rate, and steps, after which a batch counts as one that cannot be fitted.
ALL, MANY = (1.0, 10.0, 0.1, 100.0, 0.01, 1e3, 1e-3), 60
# A trial at another rate is not continued if its loss is not lower after this many steps.
SCREEN = 5
# A post-norm network needs warm-up from this number of sums that are followed by a norm.
POST_NORM = 24


@dataclass(frozen=True)
class Trial:
    """Losses before each step and after the last one, at a learning rate.

    Attributes:
        moved: the norm of the first update.
        rounded: the share of low-precision elements that the first update did not change.
    """

    rate: float
    losses: tuple[float, ...]
    moved: float = nan
    rounded: float = 0.0

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.losses) - 1

    @property
    def end(self) -> float:
        """The mean of the last three losses; infinite if any loss after the first is not finite."""
        if not all(map(isfinite, self.losses[1:])):
            return inf
        return sum(self.losses[-3:]) / len(self.losses[-3:])

    @property
    def last(self) -> float:
        """The last loss; if it is not finite, the largest finite loss after the first, or infinity."""
        known = [loss for loss in self.losses[1:] if isfinite(loss)]
        return self.losses[-1] if isfinite(self.losses[-1]) else max(known, default=inf)

    @property
    def progress(self) -> float:
        """The decrease of the loss relative to the first loss; negative if the loss rose."""
        return (self.losses[0] - self.end) / abs(self.losses[0]) if self.losses[0] else 0.0


@check("trial steps")
def check_trial(exam: Examination, steps: int) -> Steps:
    """Take `steps` steps on the batch with copies of network and optimizer, and judge them."""
    if exam.optimizer is None:
        raise NotAsked("not tried: no optimizer was given")
    if steps < 1 or not any(exam.passed.gradients.values()):
        raise NotAsked(f"not tried: {'0 steps were requested' if steps < 1 else 'there is no gradient'}")
    if not isfinite(exam.passed.loss):
        raise NotAsked("not tried: the loss is not finite")
    model, trial = tried(exam, exam.optimizer, steps)
    exam.trials.append(trial)
    yield from _settings(exam, trial)
    yield from _rates(exam, trial, steps)
    if closed := _closed(exam, model, trial):
        evidence = {"shut": len(closed), "blocks": exam.depth, "steps": steps, "rate": trial.rate}
        yield finding("branch_never_grows", 0.3 + 0.5 * len(closed) / exam.depth, closed, evidence)
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
    is_coupled = not isinstance(exam.optimizer, (SGD, torch.optim.AdamW))
    if decay > DECAY and not is_coupled:
        evidence = {"rate": trial.rate, "decay": max(group["weight_decay"] for group in groups), "per_step": decay}
        yield finding("excessive_decay", 0.94, (), evidence)
    gradient = sum(norm**2 for norm in exam.passed.gradients.values() if norm) ** 0.5
    if isinstance(exam.optimizer, SGD) and trial.moved < 1e-2 * trial.rate * gradient:
        evidence = {"moved": trial.moved, "expected": trial.rate * gradient}
        yield finding("clipped_to_nothing", 0.93, (), evidence)
    if trial.rounded > ROUNDED and trial.progress < LITTLE:
        yield finding("lost_in_rounding", 0.93, (), {"share": trial.rounded, "rate": trial.rate})


def _rates(exam: Examination, trial: Trial, steps: int) -> Iterator[Finding]:
    """Try other rates if this one does not lower the loss."""
    assert exam.optimizer is not None
    momentum = max(_momentum(group) for group in exam.optimizer.param_groups)
    evidence = {"rate": trial.rate, "steps": trial.steps, "loss_before": trial.losses[0], "loss_after": trial.last}
    effective = {"momentum": momentum, "effective_rate": trial.rate / max(1 - momentum, 1e-12)}
    sums = sum(any(layer.kind == "norm" for layer in block.after_sum) for block in exam.blocks)
    if sums >= POST_NORM and trial.progress < 0.5:
        yield finding("post_norm_depth", 0.9, (), evidence | {"sums": sums})
        return
    if abs(trial.progress) < LITTLE and momentum >= MOMENTUM:
        yield finding("effective_rate", 0.81, (), evidence | effective)
        return
    rises, is_flat = trial.progress < -LITTLE, abs(trial.progress) < LITTLE
    if (rises or is_flat) and trial.end <= LEFT_OF_LOSS * exam.guessing:
        # A trained network has little left to learn.
        return
    # Downwards the first rate that makes progress; upwards one that makes much, unless the loss rises before.
    kind, factors, share = ("rate_too_large", SMALLER, LITTLE) if rises else ("rate_too_small", LARGER, MUCH)
    for factor in factors if rises or is_flat else ():
        _, attempt = tried(exam, exam.optimizer, steps, factor)
        # A single low loss among the last ones is not progress.
        if attempt.progress > share and max(attempt.losses[-3:]) < attempt.losses[0]:
            evidence |= {"working_rate": attempt.rate, "loss_at_working_rate": attempt.losses[-1]}
            if kind == "rate_too_large" and momentum >= MOMENTUM:
                kind, evidence = "effective_rate", evidence | effective
            yield finding(kind, 0.81 if kind == "effective_rate" else 0.8, (), evidence)
            return
        if kind == "rate_too_small" and attempt.progress < -LITTLE:
            break
    if any(known.severity >= CAUSE and not known.advice for known in exam.found):
        # The cause is known; more steps would only confirm it.
        return
    stalls = trial.end >= exam.guessing and abs(trial.losses[trial.steps // 2] - trial.end) < LITTLE * abs(trial.end)
    stays = rises or is_flat or stalls or abs(trial.end - exam.guessing) < NEAR * exam.guessing
    if stays and trial.losses[0] >= exam.guessing * (1 - NEAR) and trial.rounded <= ROUNDED:
        yield from _not_fitted(exam, trial, steps)


def _not_fitted(exam: Examination, trial: Trial, steps: int) -> Iterator[Finding]:
    """Report a batch if many steps at many rates do not take its loss below that of guessing."""
    assert exam.optimizer is not None
    goal, trials = exam.guessing * (1 - NEAR), [trial]
    for factor in ALL:
        _, attempt = tried(exam, exam.optimizer, max(MANY, steps), factor)
        trials.append(attempt)
        # The loss may rise again if the rate is too large.
        if min(filter(isfinite, attempt.losses)) < goal:
            return
    rates = sorted(attempt.rate for attempt in trials)
    evidence = {"steps": max(attempt.steps for attempt in trials), "loss_before": trial.losses[0], "rate": trial.rate}
    evidence |= {
        "best": min(min(filter(isfinite, attempt.losses)) for attempt in trials),
        "lowest_rate": rates[0],
        "highest_rate": rates[-1],
    }
    yield finding("not_fitted", 0.5, (), evidence | {"loss_of_guessing": exam.guessing})


def fits(exam: Examination, trial: Trial) -> bool:
    """Whether a trial fits the batch, judged by its first loss and, if known, by the loss of constant outputs."""
    end = trial.end
    if not end <= LEFT_OF_LOSS * trial.losses[0]:
        return False
    return not isfinite(exam.guessing) or end <= LEFT_OF_GUESSING * exam.guessing


def _momentum(group: dict[str, object]) -> float:
    betas = group.get("betas", (group.get("momentum", 0.0),))
    assert isinstance(betas, (tuple, list))
    return float(betas[0])


def tried(exam: Examination, given: Optimizer, steps: int, factor: float = 1.0) -> tuple[nn.Module, Trial]:
    """Take steps with a copied optimizer, all of its rates multiplied by `factor`, on a copied network."""
    # Copied together, so that the copied optimizer holds the copied parameters.
    model, optimizer = copied((exam.model, given))
    # A copied optimizer has no hooks, and hooks may clip.
    optimizer._optimizer_step_pre_hooks = given._optimizer_step_pre_hooks.copy()
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
        if factor > 1 and group.get("weight_decay"):
            # The decay per step stays the same.
            group["weight_decay"] = group["weight_decay"] / factor
    trial = stepped(exam, model, optimizer, steps if factor == 1.0 else min(SCREEN, steps))
    is_over = trial.progress < 0 or not isfinite(trial.end)
    return model, trial if is_over else stepped(exam, model, optimizer, steps, trial)


def stepped(
    exam: Examination, model: nn.Module, optimizer: Optimizer, steps: int, begun: Trial | None = None
) -> Trial:
    """Train a network in place on the batch of an examination, or continue a trial that was begun with it."""
    rate = float(max(group["lr"] for group in optimizer.param_groups))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    moved, rounded, losses = (begun.moved, begun.rounded, [*begun.losses]) if begun else (nan, 0.0, [])
    with preserve_state(model, training=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The loss after the last step is the loss before one further step.
        rest = repeat((exam.inputs, exam.targets), steps + 1 - len(losses))
        for value in descend(model, rest, optimizer, loss=exam.loss, limit=inf):
            losses.append(value)
            if len(losses) == 1 and isfinite(value):
                moved, rounded = _first_step(model, before)
    return Trial(rate, tuple(losses), moved, rounded)


def _first_step(model: nn.Module, before: dict[str, Tensor]) -> tuple[float, float]:
    """Return the norm of an update, and the share of low-precision elements with a gradient that did not change."""
    steps = [
        (parameter, parameter.detach() - before[name])
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    ]
    moved = sum(float(step.double().square().sum()) for _, step in steps) ** 0.5
    counted = [counts for parameter, step in steps if (counts := rounded_away(step, parameter)) is not None]
    lost, concerned = (sum(map(int, counts)) for counts in zip(*counted, strict=True)) if counted else (0, 0)
    return moved, lost / max(concerned, 1)
