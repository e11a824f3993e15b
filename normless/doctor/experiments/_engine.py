"""The engine of experiments: one change of a training, made on copies, and what trial steps make of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, AdamW, Optimizer

from normless._internal.copying import copied
from normless.doctor._findings import OverBudget
from normless.doctor.facts._batches import Batches
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._replay import rounded_away
from normless.doctor.facts._tape import norm_of
from normless.probes import descend
from normless.state import preserve_state, quiet

# A trial fits the batch if at most these shares remain: of the first loss, and of that of the best constant outputs.
LEFT_OF_LOSS, LEFT_OF_GUESSING = 0.1, 0.5
# Constant outputs with this share of the first loss have none.
NOTHING = 1e-12
# A trial that lowers the loss by less than the first share does not make progress; by more than the second, it does.
LITTLE, MUCH = 0.01, 0.2
# A trial that ends below the loss of the best constant outputs by this share needs no further steps.
CLEARLY = 0.3
# A trial at another rate is not continued if its loss is not lower after this many steps; a long trial has MANY.
SCREEN, MANY = 5, 60
# Of several rates the best ones are continued; further rates lie between the best and its neighbors.
CONTINUED, BETWEEN = 2, (10**0.5, 10**-0.5)
# The rate of AdamW where no optimizer is given.
RATE = 1e-3

Copies = tuple[nn.Module, Optimizer]


@dataclass(frozen=True)
class Experiment:
    """A change of the training; without arguments, none.

    Attributes:
        change: the change in words, such as `without the softmax`.
        cause: what it concerns, as the first word of a kind.
        what: what prevents the fit if the change lets the batch be fitted.
        where: the modules or parameters that it concerns.
        factor: a factor on all learning rates; the decay per step of copies does not grow with it.
        optimizer: the optimizer of which copies are made, in place of that of the training.
        batch: other inputs, targets or loss, by their names in an examination.
        stream: batches to take in turn, in place of the one of the examination.
        make: returns network and optimizer, in place of copies.
        alter: changes the copies; a network that it returns is trained in place of the copy.
        parts: narrower experiments, to be made if this one succeeds.
        is_constant: whether the change leaves out a mask, or an operation with a constant.
        words: further words of a finding.
    """

    change: str = ""
    cause: str = ""
    what: str = ""
    where: tuple[str, ...] = ()
    factor: float = 1.0
    optimizer: Optimizer | None = None
    batch: Mapping[str, Any] = field(default_factory=dict)
    stream: Batches | None = None
    make: Callable[[], Copies] | None = None
    alter: Callable[[nn.Module, Optimizer], nn.Module | None] | None = None
    parts: tuple[Experiment, ...] = ()
    is_constant: bool = False
    words: Mapping[str, Any] = field(default_factory=dict)


UNCHANGED = Experiment()


@dataclass(frozen=True)
class Trial:
    """Losses before each step and after the last one, at a learning rate.

    Attributes:
        moved: the norm of the first update; shares: ‖Δw‖/‖w‖ of it by parameter, of those that are not zero.
        rounded: the share of low-precision elements that the first update did not change.
    """

    rate: float
    losses: tuple[float, ...]
    moved: float = nan
    rounded: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)

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

    @property
    def evidence(self) -> dict[str, float]:
        """The number of steps, and the loss before and after them."""
        return {"steps": self.steps, "loss_before": self.losses[0], "loss_after": self.last}

    def fell_below(self, guessing: float) -> float:
        """Return by which share of the loss of guessing the trial ends below it; below the first loss if unknown."""
        at = guessing if isfinite(guessing) else self.losses[0]
        return (at - self.end) / max(abs(at), 1e-12)


def fits(exam: Examination, trial: Trial) -> bool:
    """Whether a trial fits the batch, judged by its first loss and, if known, by the loss of constant outputs.

    A first loss that is what rounding leaves of summands that cancel, as of standardized advantages, says nothing.
    Nor does the loss of constant outputs if it is zero, as of the mean square of the outputs.
    """
    if abs(trial.losses[0]) <= exam.passed.rounding or not trial.end <= LEFT_OF_LOSS * trial.losses[0]:
        return False
    is_known = isfinite(exam.guessing) and abs(exam.guessing) > NOTHING * abs(trial.losses[0])
    return not is_known or trial.end <= LEFT_OF_GUESSING * exam.guessing


def is_fitted(exam: Examination, *trials: Trial) -> bool:
    """Whether one of the trials, those of the unchanged network if none are given, fits the batch."""
    return any(fits(exam, trial) for trial in trials or exam.trials)


def scheduled_rate(group: dict[str, Any]) -> Any:
    """Return the learning rate of a group of an optimizer, or the schedule's initial rate if it is 0 now."""
    return group["lr"] if float(group["lr"]) else group.get("initial_lr", group["lr"])


def set_groups(optimizer: Optimizer, settings: Mapping[str, Any]) -> None:
    """Set values in the groups of an optimizer; all rates are multiplied so that the largest becomes `lr`."""
    highest = max(float(scheduled_rate(group)) for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        for name, value in settings.items():
            group[name] = float(scheduled_rate(group)) * value / highest if name == "lr" and highest else value


def copies(exam: Examination, given: Optimizer) -> Copies:
    """Return copies of the network and of an optimizer of it, with the hooks that may change gradients."""
    # Copied together, so that the copied optimizer holds the copied parameters.
    model, optimizer = copied((exam.model, given))
    if isinstance(optimizer, LBFGS):
        # Copies of optimizers have no attributes beyond their groups and state.
        optimizer._params, optimizer._numel_cache = optimizer.param_groups[0]["params"], None
    optimizer._optimizer_step_pre_hooks = given._optimizer_step_pre_hooks.copy()
    for parameter, copy in zip(exam.model.parameters(), model.parameters(), strict=True):
        for hook in (parameter._backward_hooks or {}).values():
            copy.register_hook(hook)  # type: ignore[no-untyped-call]
    for group in optimizer.param_groups:
        group["lr"] = scheduled_rate(group)
    return model, optimizer


class RunningExperiment:
    """An experiment that has begun: the changed copies, and the trial of the steps that they took.

    Raises:
        OverBudget: the steps of the diagnosis are used up.
    """

    def __init__(self, exam: Examination, experiment: Experiment = UNCHANGED, given: Optimizer | None = None) -> None:
        exam.budget.require()
        self.exam = exam.changed(**experiment.batch) if experiment.batch else exam
        given = experiment.optimizer or given or exam.optimizer or AdamW(exam.trained, RATE, weight_decay=0.0)
        network, self.optimizer = experiment.make() if experiment.make else copies(exam, given)
        other = experiment.alter(network, self.optimizer) if experiment.alter else None
        self.network = network if other is None else other
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * experiment.factor
            if experiment.factor > 1 and experiment.make is None and group.get("weight_decay"):
                group["weight_decay"] = group["weight_decay"] / experiment.factor
        self.trial = Trial(float(max(group["lr"] for group in self.optimizer.param_groups)), ())
        self._batches = cycle(experiment.stream or [(self.exam.inputs, self.exam.targets)])

    def to(self, steps: int, goal: float = -inf) -> Trial:
        """Take steps until there are so many in all, or until the loss is below the goal."""
        before = {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}
        losses = [*self.trial.losses]
        with preserve_state(self.network, training=True), quiet():
            # The loss after the last step is the loss before one further step.
            rest = islice(self._batches, max(steps + 1 - len(losses), 0))
            for value in descend(self.network, rest, self.optimizer, loss=self.exam.loss, limit=inf):
                losses.append(value)
                self.exam.budget.made += 1
                if len(losses) == 1 and isfinite(value):
                    self.trial = _with_first_step(self.trial, self.network, before)
                if value < goal:
                    break
            learned = {name: buffer.detach().clone() for name, buffer in self.network.named_buffers()}
        with torch.no_grad():
            # Running statistics are part of what was learned.
            for name, buffer in self.network.named_buffers():
                if name in learned and learned[name].shape == buffer.shape:
                    buffer.copy_(learned[name])
        self.trial = replace(self.trial, losses=tuple(losses))
        return self.trial


def _with_first_step(trial: Trial, network: nn.Module, before: Mapping[str, Tensor]) -> Trial:
    """Add the norms of an update to a trial, and the share of elements that it rounds away."""
    named = network.named_parameters()
    steps = {name: (own, own.detach() - before[name]) for name, own in named if own.grad is not None}
    counted = [counts for own, step in steps.values() if (counts := rounded_away(step, own)) is not None]
    lost, concerned = (sum(map(int, counts)) for counts in zip(*counted, strict=True)) if counted else (0, 0)
    norms = {name: norm_of(step) for name, (_, step) in steps.items()}
    sizes = {name: norm_of(before[name]) for name in norms}
    shares = {name: norm / sizes[name] for name, norm in norms.items() if sizes[name]}
    moved = sum(norm**2 for norm in norms.values()) ** 0.5
    return replace(trial, moved=moved, rounded=lost / max(concerned, 1), shares=shares)


def tried(
    exam: Examination,
    given: Optimizer | None,
    steps: int,
    experiment: Experiment = UNCHANGED,
    goal: float = -inf,
) -> tuple[nn.Module, Trial]:
    """Return the network and the trial of an experiment; at another rate it ends where the loss rises at first."""
    run = RunningExperiment(exam, experiment, given)
    first = run.to(steps if experiment.factor == 1.0 else min(SCREEN, steps), goal)
    if first.progress >= 0 and isfinite(first.end) and first.losses[-1] >= goal:
        run.to(steps, goal)
    return run.network, run.trial


def compared(
    exam: Examination, experiments: Iterable[Experiment], steps: int
) -> Iterator[tuple[Experiment, Trial | None, float]]:
    """Make one experiment after another; return its trial and by how much this ends below the loss of guessing.

    A change may not suit the network or the loss: one that raises an error has no trial.
    """
    for experiment in experiments:
        try:
            run = RunningExperiment(exam, experiment)
            trial = run.to(steps)
            yield experiment, trial, trial.fell_below(run.exam.guessing)
        except OverBudget:
            raise
        except Exception:
            yield experiment, None, -inf


def best_rate(
    exam: Examination,
    experiment_at: Callable[[float], Experiment],
    factors: Iterable[float],
    steps: int,
    *,
    needs: float = MUCH,
    continues: float = MUCH,
    most: int = MANY,
) -> Trial | None:
    """Return the best trial of an experiment over several learning rates; None if none lowers the loss by `needs`.

    Every rate is tried for SCREEN steps, upwards none after one at which the loss rises, and then two between the
    best and its neighbors. The best ones are continued, and if the loss falls by the share `continues`, to `most`
    steps: a loss that falls slowly, or at first, may rise again.
    """
    begun: list[tuple[float, RunningExperiment]] = []

    def screened(factor: float) -> Trial:
        run = RunningExperiment(exam, experiment_at(factor))
        begun.append((factor, run))
        trial = run.to(min(SCREEN, steps))
        # Copies that are not continued take memory.
        begun.sort(key=lambda pair: pair[1].trial.end)
        del begun[CONTINUED:]
        return trial

    for factor in factors:
        if screened(factor).progress < -LITTLE and factor > 1:
            break
    best, first = begun[0]
    if first.trial.progress <= 0:
        return None
    for between in BETWEEN:
        screened(best * between)
    runs = [run for _, run in begun]
    for run in runs:
        if run.trial.progress > 0:
            run.to(steps)
    for run in sorted(runs, key=lambda run: run.trial.end):
        if run.trial.progress > continues:
            run.to(max(steps, most))
        # A single low loss among the last ones is not progress.
        if run.trial.progress > needs and max(run.trial.losses[-3:]) < run.trial.losses[0]:
            return run.trial
    return None
