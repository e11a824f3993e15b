"""By how much weights are to be multiplied so that activations keep the scale that norms gave them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

from torch import nn

from normless.signal.propagation import Propagation, mean_square
from normless.signal.steps import Step, Steps

# A factor behind an activation that is not homogeneous is found by repetition.
_ROUNDS = 40
_CLOSE = 1e-6
# A second moment this near to the norm's needs no factor in what reads it.
_NEAR = 0.02


@dataclass(frozen=True)
class Gain:
    """What some parameters are to be multiplied by.

    Attributes:
        path: of the layer or the parameter, for a record.
        parameters: their names.
        factor: the number.
        why: what it does, for a record.
        rows: first row and number of rows, along the second last axis, where only those are meant.
    """

    path: str
    parameters: tuple[str, ...]
    factor: float
    why: str
    rows: tuple[int, int] | None = None


def gains(model: nn.Module, steps: Steps) -> list[Gain]:
    """Factors by which a network without its norms has the second moments of activations that they gave.

    The signal is followed along the steps, with residual sums taken at their skip path alone, and with means and
    variances of independent elements. Where a norm reads it, the layers that made it (the last weight layer, or those
    embeddings and learned tensors that are added up) get one factor √((γ² + β²)/E[x²]), after which its second moment
    is the norm's; a γ of 0 counts as 1. A stream that norms read further on, and a weight layer at the end of a
    branch that reads a norm, get 1. A layer whose scale makes a difference to the network with its norms is left, but
    for those that read the last norm where nothing before it can be scaled: a mean over positions.

    Raises:
        MissingValuesError: weights have no values.
    """
    return _Walk(model, steps).run()


class _Walk:
    """Follows the signal, and finds factors on the way."""

    def __init__(self, model: nn.Module, steps: Steps) -> None:
        self.model = model
        self.steps = steps
        self.propagation = Propagation(model, steps)
        self.values = self.propagation.values
        self.factors = self.propagation.factors
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
        """Multiply the weights that read a norm, since what the norm reads cannot be scaled."""
        pending, seen = list(self.steps.readers[norm]), set[int]()
        while pending:
            index = pending.pop()
            step = self.steps[index]
            if index in seen or step.kind == "norm":
                continue
            seen.add(index)
            if step.kind != "weight":
                pending += self.steps.readers[index]
            elif (name := self.propagation.rows_of(step).weight) is not None and name not in self.done | self.tied:
                self._scale((name,), step.path, factor, f"its input has second moment {second:.3g} without its norm")

    def _calibrate(self, index: int, target: float, place: str) -> bool:
        """Scale what made the signal at a step, so that its second moment is `target`; False where that is not so."""
        writers, mixed = self._writers(index)
        if not writers or not all(self.steps.is_free[writer] for writer in writers):
            return False
        tokens = [writer for writer in writers if self.steps[writer].tokens is not None]
        main = [writer for writer in writers if writer not in tokens]
        names = {writer: self._scaled_by(writer) for writer in main}
        if not main or not all(names.values()):
            return False
        if mixed:
            fits = [self._fit([writer], names, writer, target, "of its output") for writer in main]
            return all(fits)
        fitted = self._fit(main, names, index, target, place)
        for token in tokens if fitted else ():
            self._fit_tokens(token, main, target)
        return fitted

    def _fit(
        self, writers: list[int], names: dict[int, tuple[str, ...]], index: int, target: float, place: str
    ) -> bool:
        """Find the one factor of some writers by which the second moment at a step is the target."""
        parameters = tuple(dict.fromkeys(name for writer in writers for name in names[writer]))
        before = {name: self.factors.get(name, 1.0) for name in parameters}
        factor, second = 1.0, self.propagation.of(index).power
        for _ in range(_ROUNDS):
            if not second > 0 or not isfinite(second) or abs(second / target - 1) < _CLOSE:
                break
            factor *= sqrt(target / second)
            self._apply(before, factor, min(writers), index)
            second = self.propagation.of(index).power
        if not abs(second / target - 1) < _NEAR:
            self._apply(before, 1.0, min(writers), index)
            return False
        why = f"second moment {target:.3g} {'of its output' if writers == [index] else place}"
        if tied := self.tied.intersection(parameters):
            factor = sqrt(factor)
            self._apply(before, factor, min(writers), index)
            why = f"half of the way, since {min(tied)} makes the logits too"
        recorded = set[str]()
        for writer in writers:
            if not recorded.issuperset(names[writer]):
                own = tuple(name for name in names[writer] if name not in recorded)
                self._record(own, self.steps[writer].path or own[0], factor, why)
                recorded.update(own)
        self.done.update(parameters)
        for at in range(min(writers), index + 1):
            self.closed[at] = self._is_closed(self.steps[at])
        return True

    def _apply(self, before: dict[str, float], factor: float, start: int, end: int) -> None:
        self.factors.update({name: old * factor for name, old in before.items()})
        for at in range(start, end + 1):
            self.values[at] = self.propagation.value(self.steps[at])

    def _fit_tokens(self, token: int, others: list[int], target: float) -> None:
        """Scale a learned token by itself, with the position embedding at its place: a norm looks at it alone."""
        step = self.steps[token]
        assert step.tokens is not None
        (name,) = step.parameters[:1]
        start, count = step.tokens
        total, positions = self.model.get_parameter(name).detach().double(), []
        for other in others:
            for position in self.steps[other].parameters if self.steps[other].kind == "add" else ():
                table = self.model.get_parameter(position).detach().double()
                if table.dim() > 1 and table.shape[-2] >= start + count and table.shape[-1] == total.shape[-1]:
                    total = total + table.narrow(-2, start, count)
                    positions.append(position)
        second = float(total.square().mean())
        self.done.add(name)
        if not second > 0:
            return
        factor, why = sqrt(target / second), f"second moment {target:.3g} of the token at its position"
        self._record((name,), name, factor, why)
        for position in positions:
            rest = factor / self.factors.get(position, 1.0)
            self.gains.append(Gain(position, (position,), rest, why, (start, count)))

    def _scale(self, parameters: tuple[str, ...], path: str, factor: float, why: str) -> None:
        self.done.update(parameters)
        for name in parameters:
            self.factors[name] = self.factors.get(name, 1.0) * factor
        self._record(parameters, path, factor, why)

    def _record(self, parameters: tuple[str, ...], path: str, factor: float, why: str) -> None:
        self.gains.append(Gain(path, parameters, factor, why))

    def _writers(self, index: int) -> tuple[list[int], bool]:
        """The steps that begin the signal at a step and are not fixed yet, and whether fixed ones have part in it."""
        found, mixed, pending, seen = set[int](), False, [index], set[int]()
        while pending:
            at = pending.pop()
            if at in seen:
                continue
            seen.add(at)
            step = self.steps[at]
            if self.closed[at]:
                mixed = True
            elif step.kind in ("weight", "parameter"):
                found.add(at)
            else:
                if step.kind == "add" and not self.done.issuperset(step.parameters):
                    found.add(at)
                pending += self._sources(step)
        return sorted(found), mixed

    def _sources(self, step: Step) -> tuple[int, ...]:
        """What a step's scale is that of: of a gate and an attention the values."""
        return step.reads[:1] if step.kind in ("gate", "attention", "sum", "dropout", "other") else step.reads

    def _is_closed(self, step: Step) -> bool:
        """Whether the scale of a step's result is settled."""
        if step.kind in ("input", "norm") or (step.kind == "other" and not step.reads):
            return True
        if step.kind in ("weight", "parameter"):
            return bool(self.done.intersection(step.parameters))
        added = step.kind != "add" or self.done.issuperset(step.parameters)
        return added and all(self.closed[read] for read in self._sources(step))

    def _scaled_by(self, writer: int) -> tuple[str, ...]:
        """The parameters that a writer's output is proportional to; none where there are no such."""
        step = self.steps[writer]
        if step.kind != "weight":
            return step.parameters
        rows = self.propagation.rows_of(step)
        return () if rows.weight is None else tuple(name for name in (rows.weight, rows.bias) if name is not None)


def _target(model: nn.Module, norm: Step) -> float:
    """The second moment γ² + β² of a norm's output, averaged over channels; 1 where γ is 0 or there is none."""
    gains = [name for name in norm.parameters if not name.endswith(("bias", "beta"))]
    shifts = [name for name in norm.parameters if name not in gains]
    gamma = mean_square(model.get_parameter(gains[0])) if len(gains) == 1 else 1.0
    return (gamma + sum(mean_square(model.get_parameter(name)) for name in shifts)) if gamma > 0 else 1.0


def _tied(model: nn.Module, steps: Steps) -> set[str]:
    """The names of learned tensors that begin a signal and are a layer's weight too."""
    looked_up = {
        id(model.get_parameter(name)) for one in steps.steps if one.kind == "parameter" for name in one.parameters
    }
    return {
        name
        for step in steps.steps
        for name in step.parameters
        if step.kind == "weight" and id(model.get_parameter(name)) in looked_up
    }
