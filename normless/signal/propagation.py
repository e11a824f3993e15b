"""Propagate moments along the operations of a network, each by the rule of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from normless.errors import MissingValuesError
from normless.residual.graph import Dataflow, Operand
from normless.residual.layers import LayerRun, Layers
from normless.residual.main_path import passed_on
from normless.residual.operations import ATTENTION, LAYOUT, PRODUCT, WEIGHT
from normless.residual.sums import SumFinder
from normless.signal.moments import Moments, per_axis, placed
from normless.signal.rules import KINDS, RULES
from normless.signal.weights import Rows, rows_of


@dataclass
class Propagation:
    """The moments of the results of a network's operations, each computed from those of its inputs.

    By position, norms and residual branches have their effect, and moments after an operation without a rule are
    unknown until a norm. By channel, moments have shape (1, C), averaged over positions, and show the scale that
    weights alone set: norms return their input, a residual sum is its skip path, inputs have second moment 1, and
    operations without a rule keep the scale.

    Attributes:
        model: the network.
        flow: its operations, up to date.
        inputs: the batch's first floating-point tensor, shape (B, …), or None.
        by_position: whether moments are computed at every position.
        training: whether norms use the batch's statistics and dropout is active.
        examples: the size of the batch.
        factors: factors of parameters by name, 1 if absent; for moments by channel.
        values: the moments of every operation so far, or why they are unknown.
    """

    model: nn.Module
    flow: Dataflow
    inputs: Tensor | None = None
    by_position: bool = True
    training: bool = True
    examples: int = 1
    factors: dict[str, float] = field(default_factory=dict, init=False)
    values: list[Moments | str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.layers = Layers(self.model, self.flow)
        self.sums = SumFinder(self.layers).sums
        self._rows: dict[int, Rows] = {}

    @cached_property
    def names(self) -> list[str]:
        """The names in `RULES` of the operations, empty for a part of a layer that its last operation computes."""
        return [self._name(at) for at in range(len(self.flow))]

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of the operations, as in `KINDS`."""
        return [KINDS.get(name, "other") for name in self.names]

    @cached_property
    def reads(self) -> list[tuple[int, ...]]:
        """The operations that each operation, or its whole layer, reads; the value of a product, the skip first."""
        return [self._reads(at) for at in range(len(self.flow))]

    def _name(self, at: int) -> str:
        operation, run = self.flow[at], self.layers.owner.get(at)
        if at in self.sums:
            return "residual_sum"
        if run is not None and _is_whole(self.flow, run):
            is_known = len(run.operations) == 1 and KINDS.get(operation.name) == run.layer.kind
            return "" if at != run.operations[-1] else operation.name if is_known else run.layer.kind
        if operation.name in WEIGHT and operation.parameters:
            # Learned weights of several streams are a scale.
            is_scale = run is not None and run.layer.kind == "scale"
            return "mul" if is_scale else operation.name if KINDS.get(operation.name) == "weight" else "weight"
        if operation.is_dropout:
            return "dropout"
        if operation.name == "mul" and len(operation.parents) == 2:
            return "gate"
        if operation.name in PRODUCT | ATTENTION:
            return "attention" if len(passed_on(self.layers, at)) == 1 else ""
        return operation.name

    def _reads(self, at: int) -> tuple[int, ...]:
        parents, kind = self.flow[at].parents, self.kinds[at]
        if kind == "parameter":
            return ()
        if kind == "sum":
            return (self.sums[at].skip, *self.sums[at].branches)
        if kind in ("gate", "attention"):
            value = (passed_on(self.layers, at) or parents)[0]
            return (value, *(parent for parent in parents if parent != value))
        run = self.layers.owner.get(at)
        is_end = self.names[at] != "" and run is not None and _is_whole(self.flow, run)
        return tuple(sorted(self.layers.inputs(at)))[:1] if is_end else parents

    def run(self) -> Propagation:
        """Compute the moments of all operations."""
        for at in range(len(self.values), len(self.flow)):
            self.values.append(self.value(at))
        return self

    def value(self, at: int) -> Moments | str:
        """Compute the moments of an operation's result."""
        name, reads = self.names[at], self.reads[at]
        unread = f"the values of {name}" if self.by_position and name != "input" else Moments.standard()
        x = self.values[reads[0]] if reads else unread
        if isinstance(x, Moments) and self.by_position and at in self.layers.owner:
            needs_layout = self.kinds[at] in ("weight", "norm")
            x = self.placed(at, x) or (f"the layout that {self.place(at)} reads" if needs_layout else x)
        if isinstance(x, str) and self.kinds[at] != "norm":
            return x
        place = f" at {self.flow[at].module}" if self.flow[at].module else ""
        output: Moments | str = f"{self.flow[at].name}, an operation without a rule,{place}"
        if name in RULES:
            try:
                output = RULES[name](self, at, x)
            except MissingValuesError:
                raise
            except (RuntimeError, TypeError, ValueError, IndexError):
                # A module that does not support float64 or this shape.
                output = f"{self.place(at)}, which raised an error"
        return output if self.by_position or isinstance(output, Moments) or isinstance(x, str) else x

    def of(self, at: int) -> Moments:
        """Return the moments of an operation, which are always known by channel."""
        moments = self.values[at]
        assert isinstance(moments, Moments)
        return moments

    def placed(self, at: int, x: Moments) -> Moments | None:
        """Change moments to the layout that an operation reads, or return None."""
        return placed(x, self.flow[self.reads[at][0]].shape)

    def place(self, at: int) -> str:
        """Return the path of an operation's layer, or its name."""
        run = self.layers.owner.get(at)
        return self.flow[at].name if run is None else run.layer.path

    def module(self, at: int) -> nn.Module | None:
        """Return the module that runs the layer of an operation, None for a function."""
        run = self.layers.owner.get(at)
        if run is None or ":" in run.layer.path or not run.layer.called:
            return None
        return self.model.get_submodule(run.layer.path)

    def parameters(self, at: int) -> tuple[str, ...]:
        """Return the first names of the learned tensors that an operation, or its whole layer, reads."""
        run = self.layers.owner.get(at)
        if run is not None and self.kinds[at] == "norm":
            return run.layer.parameters
        return tuple(dict.fromkeys(map(self.layers.names.parameter, self.flow[at].parameters)))

    def constant(self, at: int, shape: torch.Size) -> Tensor | float | None:
        """Return the second operand, a number or a learned tensor that broadcasts over `shape`; None if unknown."""
        operation = self.flow[at]
        if operation.name in ("sub", "div") and not isinstance(operation.arguments[0], Operand):
            return None
        if operation.numbers:
            return operation.numbers[-1]
        # A computed tensor is known if it is a parameter in another layout.
        if len(operation.fixed) != 1 or [degree for _, degree in operation.fixed[0].degrees] != [1.0]:
            return None
        (fixed,) = operation.fixed
        values = self.model.get_parameter(fixed.parameters[0]).detach().double() + fixed.offset
        return per_axis(values, shape, last=fixed.is_parameter)

    def shares(self, at: int) -> tuple[float, ...]:
        """Return the factors of an addition on its terms, as of `torch.add(x, y, alpha=2)`, `torch.lerp(x, y, 0.1)`."""
        operation, terms = self.flow[at], self.reads[at]
        last = next((float(part) for part in operation.arguments if isinstance(part, (int, float))), None)
        if (
            len(terms) != 2
            or operation.name not in ("add", "sub", "lerp")
            or (last is None and operation.name != "sub")
        ):
            return (1.0,) * len(terms)
        first = 1 - last if operation.name == "lerp" and last is not None else 1.0
        last = (1.0 if last is None else last) * (-1 if operation.name == "sub" else 1)
        return tuple(last if term == operation.operands[-1] else first for term in terms)

    def rows_of(self, at: int) -> Rows:
        """Return the rows of a weight layer."""
        if at not in self._rows:
            self._rows[at] = rows_of(self, at)
        return self._rows[at]

    def power_of(self, names: Iterable[str]) -> float:
        """Return the second moment of a sum of learned tensors."""
        return sum(self.factors.get(name, 1.0) ** 2 * mean_square(self.model.get_parameter(name)) for name in names)

    def is_independent(self, first: int, second: int) -> bool:
        """Whether weight layers separate two results from everything that both are computed from."""
        origins, other_origins = (
            reachable([at], lambda at: () if self.kinds[at] == "weight" else self.reads[at]) for at in (first, second)
        )
        return set(origins).isdisjoint(other_origins)

    def origin(self, at: int, *passed: str) -> int:
        """Follow the first inputs of an operation back to the nearest operation not of the `passed` kinds."""
        while self.kinds[at] in passed and self.reads[at]:
            at = self.reads[at][0]
        return at


def _is_whole(flow: Dataflow, run: LayerRun) -> bool:
    """Whether one rule computes a layer: a norm, or an activation that is more than one function of its input."""
    if run.layer.kind != "activation":
        return run.layer.kind in ("norm", "direction")
    operations = [flow[part] for part in run.operations]
    bends = [operation for operation in operations if operation.name not in LAYOUT | {"add", "sub", "mul", "div"}]
    is_chain = all(len(operation.parents) == 1 for operation in operations)
    return not is_chain or len(bends) > 1 or not all(part.parameters for each in operations for part in each.fixed)


def reachable(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[int]:
    """Return the operations in `start`, those that follow them, and so on, each once."""
    reached, pending = dict[int, None](), list(start)
    while pending:
        at = pending.pop()
        if at not in reached:
            reached[at] = None
            pending += following(at)
    return list(reached)


def mean_square(tensor: Tensor) -> float:
    """Return the mean square of a learned tensor; raise MissingValuesError on the meta device."""
    if tensor.is_meta:
        raise MissingValuesError("A learned tensor has no values.")
    return float(tensor.detach().double().square().mean())
