"""Compute factors of weights that keep the scale of activations when norms are removed."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import nn

from normless._internal.reach import reachable
from normless.residual._graph import Dataflow, Operand
from normless.signal._rules import Propagation, mean_square
from normless.signal._weights import rows_of

# If an activation is not homogeneous, a factor is the limit of an iteration.
_ROUNDS = 40
_CLOSE = 1e-6
# The readers of a second moment this close to the norm's need no factor.
_NEAR = 0.02
# The kinds of operations that have the scale of their parameters.
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
def gains(model: nn.Module, flow: Dataflow) -> list[Gain]:
    """Compute factors of weights with which a network keeps the second moments of its activations without norms.

    Moments are propagated by channel (`Propagation`). The layers that produce the input of a norm (the last weight
    layer, or the embeddings and learned tensors that are summed) get a common factor √((γ² + β²)/E[x²]), for the
    second moment of the norm's output; a γ of 0 counts as 1. A stream that norms read later, and a weight layer at
    the end of a branch that reads a norm, get second moment 1. A layer with a scale that matters with norms is
    unchanged, except the readers of the last norm if nothing before it can be scaled (after a mean over positions).

    Raises:
        MissingValuesError: weights have no values.
    """
    return _Walk(Propagation(model, flow, by_position=False, training=False)).run()


class _Walk:
    """Propagate moments and compute factors on the way."""

    def __init__(self, p: Propagation) -> None:
        self.p, self.values, self.factors = p, p.values, p.factors
        self.kinds, self.readers = p.kinds, p.flow.consumers
        self.closed: list[bool] = []
        self.done: set[str] = set()
        self.gains: list[Gain] = []
        self.tied, self.is_free = _tied(p), _is_free(p)
        self.forks = {total.fork for total in p.sums.values()}
        # The end of an empty branch is a fork.
        ends = {end for total in p.sums.values() for end in total.branches} - self.forks
        self.writers = {self._origin(end, "other") for end in ends}

    def _origin(self, at: int, *passed: str) -> int:
        return self.p.flow.source(at, lambda at: self.kinds[at] in passed)

    def _ends_branch(self, at: int) -> bool:
        """Whether only factors and layouts follow a weight layer on its branch, at most poolings since a norm."""
        if at not in self.writers or self.kinds[at] != "weight" or not self.is_free[at]:
            return False
        return self.kinds[self._origin(self.p.reads[at][0], "other", "activation", "pool")] == "norm"

    def run(self) -> list[Gain]:
        for at, kind in enumerate(self.kinds):
            self.values.append(self.p.value(at))
            self.closed.append(self._is_closed(at))
            if kind == "norm":
                self._at_norm(at)
                self.values[at] = self.p.value(at)
            elif self._ends_branch(at):
                self._calibrate(at, 1.0, "of its output")
            elif at in self.forks and not self.closed[at]:
                self._calibrate(at, 1.0, "where a residual block starts")
        return self.gains

    def _at_norm(self, at: int) -> None:
        (read,) = self.p.reads[at][:1]
        target = _target(self.p, at)
        if not self.closed[read] and self._calibrate(read, target, f"before {self.p.place(at)}"):
            return
        second = self.p.of(read).power
        if at > max(self.p.sums, default=at) and second > 0 and abs(second / target - 1) > _NEAR:
            self._at_readers(at, sqrt(target / second), second)

    def _at_readers(self, norm: int, factor: float, second: float) -> None:
        """Multiply the weights that read a norm if the norm's input cannot be scaled."""
        reached = reachable(
            self.readers[norm], lambda at: () if self.kinds[at] in ("norm", "weight") else self.readers[at]
        )
        for at in reached:
            name = rows_of(self.p, at).weight if self.kinds[at] == "weight" else None
            if name is not None and name not in self.done | self.tied:
                self.done.add(name)
                self.factors[name] = self.factors.get(name, 1.0) * factor
                why = f"its input has second moment {second:.3g} without its norm"
                self.gains.append(Gain(self.p.place(at), (name,), factor, why))

    def _calibrate(self, at: int, target: float, place: str) -> bool:
        """Scale the writers of an operation so that its second moment is `target`; return False if that fails."""
        writers, mixed = self._writers(at)
        tokens = {writer: token for writer in writers if (token := _token(self.p, writer))}
        names = {writer: self._scaled_by(writer) for writer in writers if writer not in tokens}
        if not names or not all(names.values()) or not all(self.is_free[writer] for writer in writers):
            return False
        if mixed:
            fits = [self._fit({writer: own}, writer, target, "of its output") for writer, own in names.items()]
            return all(fits)
        if not self._fit(names, at, target, place):
            return False
        for writer, token in tokens.items():
            self._fit_tokens(writer, token, list(names), target)
        return True

    def _fit(self, names: dict[int, tuple[str, ...]], end: int, target: float, place: str) -> bool:
        """Multiply the parameters of writers by a common factor for which `end` has the target's second moment."""
        before = {name: self.factors.get(name, 1.0) for own in names.values() for name in own}
        span = range(min(names), end + 1)
        factor, second = 1.0, self.p.of(end).power
        for _ in range(_ROUNDS):
            if not second > 0 or not isfinite(second) or abs(second / target - 1) < _CLOSE:
                break
            factor *= sqrt(target / second)
            second = self._apply(before, factor, span)
        if not abs(second / target - 1) < _NEAR:
            self._apply(before, 1.0, span)
            return False
        why = f"second moment {target:.3g} {'of its output' if list(names) == [end] else place}"
        if tied := self.tied.intersection(before):
            factor = sqrt(factor)
            self._apply(before, factor, span)
            why = f"half of the way, since {min(tied)} makes the logits too"
        recorded = set[str]()
        for writer in names:
            if own := tuple(name for name in names[writer] if name not in recorded):
                path = self.p.place(writer) if self.kinds[writer] == "weight" else own[0]
                self.gains.append(Gain(path, own, factor, why))
                recorded.update(own)
        self.done.update(before)
        for at in span:
            self.closed[at] = self._is_closed(at)
        return True

    def _apply(self, before: dict[str, float], factor: float, span: range) -> float:
        """Multiply parameters, propagate along the operations of `span`, and return the second moment at its end."""
        self.factors.update({name: old * factor for name, old in before.items()})
        for at in span:
            self.values[at] = self.p.value(at)
        return self.p.of(span[-1]).power

    def _fit_tokens(self, token: int, place: tuple[int, int], others: list[int], target: float) -> None:
        """Scale a learned token and the position embedding at its place, since norms treat tokens separately."""
        (name,), (start, count) = self.p.parameters(token)[:1], place
        total, positions = self.p.model.get_parameter(name).detach().double(), []
        for position in (name for at in others if self.kinds[at] == "add" for name in self.p.parameters(at)):
            table = self.p.model.get_parameter(position).detach().double()
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

    def _writers(self, end: int) -> tuple[list[int], bool]:
        """Return the scalable operations that begin the signal at `end`, and whether others contribute to it."""
        begins = [closed or kind in _BEGIN for closed, kind in zip(self.closed, self.kinds, strict=False)]
        reached = sorted(reachable([end], lambda at: () if begins[at] else self._sources(at)))
        own = [at for at in reached if not self.closed[at]]
        return [at for at in own if self.kinds[at] in _BEGIN or self._is_open(at)], len(own) < len(reached)

    def _is_open(self, at: int) -> bool:
        """Whether an operation adds a learned tensor that is not scaled yet."""
        return self.kinds[at] == "add" and not self.done.issuperset(self.p.parameters(at))

    def _is_closed(self, at: int) -> bool:
        """Whether the scale of a result is final."""
        if self.kinds[at] in ("input", "norm"):
            return True
        if self.kinds[at] in _BEGIN:
            return bool(self.done.intersection(self.p.parameters(at)))
        return not self._is_open(at) and all(self.closed[read] for read in self._sources(at))

    def _sources(self, at: int) -> tuple[int, ...]:
        """Return the inputs that determine the scale of a result: of an addition or concatenation all of them."""
        return self.p.reads[at] if self.kinds[at] in ("add", "join") else self.p.reads[at][:1]

    def _scaled_by(self, writer: int) -> tuple[str, ...]:
        """Return the parameters to which a writer's output is proportional, possibly none."""
        if self.kinds[writer] != "weight":
            return self.p.parameters(writer)
        rows = rows_of(self.p, writer)
        return () if rows.weight is None else tuple(name for name in (rows.weight, rows.bias) if name is not None)


def _is_free(p: Propagation) -> list[bool]:
    """Return whether the scale of each operation is arbitrary: every path from it to the outputs passes a norm."""
    free = [True] * len(p.flow)
    for at in reversed(range(len(free))):
        readers = p.flow.consumers[at]
        free[at] = at not in p.flow.outputs and all(p.kinds[reader] == "norm" or free[reader] for reader in readers)
    return free


def _token(p: Propagation, at: int) -> tuple[int, int] | None:
    """Return the first position and the number of positions of a learned tensor in a concatenation, or None."""
    reader = next((reader for reader in p.flow.consumers[at] if p.flow[reader].name == "cat"), None)
    if reader is None or p.flow[at].name != "parameter":
        return None
    (parts, axis) = (*p.flow[reader].arguments, 0)[:2]
    until = parts[: parts.index(Operand(at)) + 1]
    sizes = [shape[axis] for part in until if isinstance(part, Operand) and (shape := p.flow[part.index].shape)]
    return (sum(sizes[:-1]), sizes[-1]) if len(sizes) == len(until) else None


def _target(p: Propagation, norm: int) -> float:
    """Return the second moment γ² + β² of a norm's output, averaged over channels; 1 if γ is 0 or absent."""
    layer = p.layers.owner[norm].layer
    scales = [name for name in layer.parameters if name not in layer.shifts]
    gamma = mean_square(p.model.get_parameter(scales[0])) if len(scales) == 1 else 1.0
    return (gamma + sum(mean_square(p.model.get_parameter(name)) for name in layer.shifts)) if gamma > 0 else 1.0


def _tied(p: Propagation) -> set[str]:
    """Return the names of embeddings and learned tensors that are tied to the weight of a layer."""
    named = [(p.kinds[at], name) for at in range(len(p.flow)) for name in p.parameters(at)]
    looked_up = {id(p.model.get_parameter(name)) for kind, name in named if kind == "parameter"}
    return {name for kind, name in named if kind == "weight" and id(p.model.get_parameter(name)) in looked_up}
