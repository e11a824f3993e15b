"""Compute factors of weights that keep the scale of activations when norms are removed."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import nn

from normless._internal.reach import reachable
from normless.signal.propagation import Propagation, mean_square
from normless.signal.steps import Step, Steps

# If an activation is not homogeneous, a factor is the limit of an iteration.
_ROUNDS = 40
_CLOSE = 1e-6
# The readers of a second moment this close to the norm's need no factor.
_NEAR = 0.02
# The kinds of steps that have the scale of their parameters.
_BEGIN = ("weight", "parameter")


@dataclass(frozen=True)
class Gain:
    """A factor for some parameters.

    Attributes:
        path: the path of the layer or the parameter, for a record.
        parameters: the names of the parameters.
        factor: the factor.
        why: its purpose, for a record.
        rows: the first row and the number of rows along the second last axis, None for all rows.
    """

    path: str
    parameters: tuple[str, ...]
    factor: float
    why: str
    rows: tuple[int, int] | None = None


@torch.no_grad()
def gains(model: nn.Module, steps: Steps) -> list[Gain]:
    """Compute factors of weights with which a network keeps the second moments of its activations without norms.

    Moments are propagated by channel (`Propagation`). The layers that produce the input of a norm (the last weight
    layer, or the embeddings and learned tensors that are summed) get a common factor √((γ² + β²)/E[x²]), for the
    second moment of the norm's output; a γ of 0 counts as 1. A stream that norms read later, and a weight layer at
    the end of a branch that reads a norm, get second moment 1. A layer with a scale that matters with norms is
    unchanged, except the readers of the last norm if nothing before it can be scaled (after a mean over positions).

    Raises:
        MissingValuesError: weights have no values.
    """
    return _Walk(model, steps).run()


class _Walk:
    """Propagate moments and compute factors on the way."""

    def __init__(self, model: nn.Module, steps: Steps) -> None:
        self.model, self.steps = model, steps
        self.propagation = Propagation(model, steps, training=False)
        self.values, self.factors = self.propagation.values, self.propagation.factors
        self.closed: list[bool] = []
        self.done: set[str] = set()
        self.gains: list[Gain] = []
        self.tied = _tied(model, steps)
        self.end = max((index for index, step in enumerate(steps.steps) if step.kind == "sum"), default=-1)

    def run(self) -> list[Gain]:
        for index, step in enumerate(self.steps.steps):
            self.values.append(self.propagation.value(step))
            self.closed.append(self._is_closed(step))
            if step.kind == "norm":
                self._at_norm(index, step)
                self.values[index] = self.propagation.value(step)
            elif index in self.steps.writers and self.steps.reads_norm(index) and self.steps.is_free[index]:
                self._calibrate(index, 1.0, "of its output")
            elif index in self.steps.forks and not self.closed[index]:
                self._calibrate(index, 1.0, "where a residual block starts")
        return self.gains

    def _at_norm(self, index: int, step: Step) -> None:
        (read,) = step.reads[:1]
        target = _target(self.model, step)
        if not self.closed[read] and self._calibrate(read, target, f"before {step.path}"):
            return
        second = self.propagation.of(read).power
        if index > self.end >= 0 and second > 0 and abs(second / target - 1) > _NEAR:
            self._at_readers(index, sqrt(target / second), second)

    def _at_readers(self, norm: int, factor: float, second: float) -> None:
        """Multiply the weights that read a norm if the norm's input cannot be scaled."""
        readers = self.steps.readers
        reached = reachable(
            readers[norm], lambda at: () if self.steps[at].kind in ("norm", "weight") else readers[at]
        )
        for step in map(self.steps.__getitem__, reached):
            name = self.propagation.rows_of(step).weight if step.kind == "weight" else None
            if name is not None and name not in self.done | self.tied:
                self.done.add(name)
                self.factors[name] = self.factors.get(name, 1.0) * factor
                why = f"its input has second moment {second:.3g} without its norm"
                self.gains.append(Gain(step.path, (name,), factor, why))

    def _calibrate(self, index: int, target: float, place: str) -> bool:
        """Scale the writers of a step so that its second moment is `target`; return False if that fails."""
        writers, mixed = self._writers(index)
        names = {writer: self._scaled_by(writer) for writer in writers if self.steps[writer].tokens is None}
        if not names or not all(names.values()) or not all(self.steps.is_free[writer] for writer in writers):
            return False
        if mixed:
            fits = [self._fit({writer: own}, writer, target, "of its output") for writer, own in names.items()]
            return all(fits)
        if not self._fit(names, index, target, place):
            return False
        for token in writers:
            if token not in names:
                self._fit_tokens(token, list(names), target)
        return True

    def _fit(self, names: dict[int, tuple[str, ...]], index: int, target: float, place: str) -> bool:
        """Multiply the parameters of writers by a common factor for which a step has the target's second moment."""
        before = {name: self.factors.get(name, 1.0) for own in names.values() for name in own}
        span = range(min(names), index + 1)
        factor, second = 1.0, self.propagation.of(index).power
        for _ in range(_ROUNDS):
            if not second > 0 or not isfinite(second) or abs(second / target - 1) < _CLOSE:
                break
            factor *= sqrt(target / second)
            second = self._apply(before, factor, span)
        if not abs(second / target - 1) < _NEAR:
            self._apply(before, 1.0, span)
            return False
        why = f"second moment {target:.3g} {'of its output' if list(names) == [index] else place}"
        if tied := self.tied.intersection(before):
            factor = sqrt(factor)
            self._apply(before, factor, span)
            why = f"half of the way, since {min(tied)} makes the logits too"
        recorded = set[str]()
        for writer in names:
            if own := tuple(name for name in names[writer] if name not in recorded):
                self.gains.append(Gain(self.steps[writer].path or own[0], own, factor, why))
                recorded.update(own)
        self.done.update(before)
        for at in span:
            self.closed[at] = self._is_closed(self.steps[at])
        return True

    def _apply(self, before: dict[str, float], factor: float, span: range) -> float:
        """Multiply parameters, propagate along the steps of `span`, and return the second moment at its end."""
        self.factors.update({name: old * factor for name, old in before.items()})
        for at in span:
            self.values[at] = self.propagation.value(self.steps[at])
        return self.propagation.of(span[-1]).power

    def _fit_tokens(self, token: int, others: list[int], target: float) -> None:
        """Scale a learned token and the position embedding at its position, since norms treat tokens separately."""
        step = self.steps[token]
        assert step.tokens is not None
        (name,) = step.parameters[:1]
        start, count = step.tokens
        total, positions = self.model.get_parameter(name).detach().double(), []
        added = [
            parameter
            for step_index in others
            if self.steps[step_index].kind == "add"
            for parameter in self.steps[step_index].parameters
        ]
        for position in added:
            table = self.model.get_parameter(position).detach().double()
            if table.dim() > 1 and table.shape[-2] >= start + count and table.shape[-1] == total.shape[-1]:
                total = total + table.narrow(-2, start, count)
                positions.append(position)
        second = mean_square(total)
        self.done.add(name)
        if not second > 0:
            return
        factor, why = sqrt(target / second), f"second moment {target:.3g} of the token at its position"
        self.gains.append(Gain(name, (name,), factor, why))
        for position in positions:
            rest = factor / self.factors.get(position, 1.0)
            self.gains.append(Gain(position, (position,), rest, why, (start, count)))

    def _writers(self, index: int) -> tuple[list[int], bool]:
        """Return the scalable steps that begin the signal at a step, and whether other steps contribute to it."""

        def sources(at: int) -> tuple[int, ...]:
            return () if self.closed[at] or self.steps[at].kind in _BEGIN else _sources(self.steps[at])

        reached = sorted(reachable([index], sources))
        own = {at: self.steps[at] for at in reached if not self.closed[at]}
        writers = [
            at for at, step in own.items() if step.kind in _BEGIN or (step.kind == "add" and self._is_open(step))
        ]
        return writers, len(own) < len(reached)

    def _is_open(self, addition: Step) -> bool:
        """Whether an added learned tensor is not scaled yet."""
        return not self.done.issuperset(addition.parameters)

    def _is_closed(self, step: Step) -> bool:
        """Whether the scale of a step's result is final."""
        if step.kind in ("input", "norm") or (step.kind == "other" and not step.reads):
            return True
        if step.kind in _BEGIN:
            return bool(self.done.intersection(step.parameters))
        if step.kind == "add" and self._is_open(step):
            return False
        return all(self.closed[read] for read in _sources(step))

    def _scaled_by(self, writer: int) -> tuple[str, ...]:
        """Return the parameters to which a writer's output is proportional, possibly none."""
        step = self.steps[writer]
        if step.kind != "weight":
            return step.parameters
        rows = self.propagation.rows_of(step)
        return () if rows.weight is None else tuple(name for name in (rows.weight, rows.bias) if name is not None)


def _sources(step: Step) -> tuple[int, ...]:
    """Return the inputs that determine the scale of a step: for a gate or an attention, the values."""
    return step.reads[:1] if step.kind in ("gate", "attention", "sum", "dropout", "other") else step.reads


def _target(model: nn.Module, norm: Step) -> float:
    """Return the second moment γ² + β² of a norm's output, averaged over channels; 1 if γ is 0 or absent."""
    gains = [name for name in norm.parameters if name not in norm.shifts]
    gamma = mean_square(model.get_parameter(gains[0])) if len(gains) == 1 else 1.0
    return (gamma + sum(mean_square(model.get_parameter(name)) for name in norm.shifts)) if gamma > 0 else 1.0


def _tied(model: nn.Module, steps: Steps) -> set[str]:
    """Return the names of embeddings and learned tensors that are tied to the weight of a layer."""
    named = [(step.kind, name) for step in steps.steps for name in step.parameters]
    looked_up = {id(model.get_parameter(name)) for kind, name in named if kind == "parameter"}
    return {name for kind, name in named if kind == "weight" and id(model.get_parameter(name)) in looked_up}
