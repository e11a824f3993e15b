"""Trial steps on copies of a network and its optimizer, and the losses that they reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import inf, isfinite, nan
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from normless._internal.copying import copied
from normless._internal.state import quiet
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.replay import rounded_away
from normless.probes import descend, preserve_state

# A trial fits the batch if at most these shares remain: of the first loss, and of that of the best constant outputs.
LEFT_OF_LOSS, LEFT_OF_GUESSING = 0.1, 0.5
# A trial at another rate is not continued if its loss is not lower after this many steps.
SCREEN = 5


@dataclass(frozen=True)
class Trial:
    """Losses before each step and after the last one, at a learning rate.

    Attributes:
        moved: the norm of the first update.
        shares: ‖Δw‖/‖w‖ of the first update by parameter, of those with a gradient that are not zero.
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


def fits(exam: Examination, trial: Trial) -> bool:
    """Whether a trial fits the batch, judged by its first loss and, if known, by the loss of constant outputs.

    A first loss that is what rounding leaves of summands that cancel, as of standardized advantages, says nothing.
    """
    end = trial.end
    if abs(trial.losses[0]) <= exam.passed.rounding:
        return False
    if not end <= LEFT_OF_LOSS * trial.losses[0]:
        return False
    return not isfinite(exam.guessing) or end <= LEFT_OF_GUESSING * exam.guessing


def scheduled_rate(group: dict[str, Any]) -> Any:
    """Return the learning rate of a group of an optimizer, or the schedule's initial rate if it is 0 now."""
    return group["lr"] if float(group["lr"]) else group.get("initial_lr", group["lr"])


def set_groups(optimizer: Optimizer, settings: Mapping[str, Any]) -> None:
    """Set values in the groups of an optimizer; all rates are multiplied so that the largest becomes `lr`."""
    highest = max(float(scheduled_rate(group)) for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        for name, value in settings.items():
            group[name] = float(scheduled_rate(group)) * value / highest if name == "lr" and highest else value


def copies(exam: Examination, given: Optimizer) -> tuple[nn.Module, Optimizer]:
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


def tried(
    exam: Examination, given: Optimizer, steps: int, factor: float = 1.0, goal: float = -inf
) -> tuple[nn.Module, Trial]:
    """Take steps with a copied optimizer, all of its rates multiplied by `factor`, on a copied network.

    The trial ends early if its loss falls below the goal.
    """
    model, optimizer = copies(exam, given)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
        if factor > 1 and group.get("weight_decay"):
            # The decay per step stays the same.
            group["weight_decay"] = group["weight_decay"] / factor
    trial = stepped(exam, model, optimizer, steps if factor == 1.0 else min(SCREEN, steps), goal=goal)
    is_over = trial.progress < 0 or not isfinite(trial.end) or trial.losses[-1] < goal
    return model, trial if is_over else stepped(exam, model, optimizer, steps, trial, goal)


def stepped(
    exam: Examination,
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    begun: Trial | None = None,
    goal: float = -inf,
) -> Trial:
    """Train a network in place on the batch of an examination, or continue a trial that was begun with it.

    Raises:
        OverBudget: the steps of the diagnosis are used up, and this is no continuation.
    """
    if begun is None:
        exam.budget.require()
    rate = float(max(group["lr"] for group in optimizer.param_groups))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first = begun or Trial(rate, ())
    losses = [*first.losses]
    with preserve_state(model, training=True), quiet():
        # The loss after the last step is the loss before one further step.
        rest = repeat((exam.inputs, exam.targets), steps + 1 - len(losses))
        for value in descend(model, rest, optimizer, loss=exam.loss, limit=inf):
            losses.append(value)
            exam.budget.made += 1
            if len(losses) == 1 and isfinite(value):
                first = _first_step(first, model, before)
            if value < goal:
                break
    return replace(first, losses=tuple(losses))


def _first_step(trial: Trial, model: nn.Module, before: dict[str, Tensor]) -> Trial:
    """Add the norm of an update and its shares to a trial, and the share of elements that it rounds away."""
    steps = {
        name: (parameter, parameter.detach() - before[name])
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    norms = {name: float(step.double().norm()) for name, (_, step) in steps.items()}
    sizes = {name: float(before[name].double().norm()) for name in steps}
    shares = {name: norm / sizes[name] for name, norm in norms.items() if sizes[name]}
    counted = [counts for own, step in steps.values() if (counts := rounded_away(step, own)) is not None]
    lost, concerned = (sum(map(int, counts)) for counts in zip(*counted, strict=True)) if counted else (0, 0)
    moved = sum(norm**2 for norm in norms.values()) ** 0.5
    return replace(trial, moved=moved, rounded=lost / max(concerned, 1), shares=shares)
