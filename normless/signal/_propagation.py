"""Propagate moments along the operations of a network, each by the rule of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normless.errors import MissingValuesError
from normless.residual._graph import Dataflow, Fixed, Operand
from normless.residual._layers import LayerRun, Layers
from normless.residual._main_path import passed_on
from normless.residual._operations import ATTENTION, LAYOUT, PRODUCT, WEIGHT
from normless.residual._sums import SumFinder
from normless.signal._moments import Moments, per_axis, placed

# A rule takes the operation's index and the moments of its first input, of a norm also why they are unknown. It
# returns the moments of the result, or a few words on why they are unknown.
MomentRule = Callable[["Propagation", int, Any], Moments | str]
Some = TypeVar("Some", bound=MomentRule)

RULES: dict[str, MomentRule] = {}
KINDS: dict[str, str] = {}
"""The kind of operation of each name in `RULES`; `other` if it only scales its input or keeps the values."""


def rule(*names: str, kind: str = "other") -> Callable[[Some], Some]:
    """Decorate a function as the rule of the operations of these names, all of one kind."""

    def add(function: Some) -> Some:
        RULES.update(dict.fromkeys(names, function))
        KINDS.update(dict.fromkeys(names, kind))
        return function

    return add


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
        rows: the rows of the weight layers so far, see `rows_of`.
        names: the names in `RULES` of the operations, empty for a part of a layer that its last operation computes.
        kinds: the kinds of the operations in `KINDS`.
        reads: what each operation, or its whole layer, reads; the value of a product and the skip path come first.
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
        self.layers, every = Layers(self.model, self.flow), range(len(self.flow))
        self.sums = SumFinder(self.layers).sums
        whole = [run.operations for run in self.layers.runs if _is_whole(self.flow, run)]
        self._ends = {part: parts[-1] for parts in whole for part in parts}
        self.rows: dict[int, Any] = {}
        self.names = [self._name(at) for at in every]
        self.kinds = [KINDS.get(name, "other") for name in self.names]
        self.reads = [self._reads(at) for at in every]

    def _name(self, at: int) -> str:
        operation, kind = self.flow[at], self.layers.kind(at)
        if at in self.sums:
            return "residual_sum"
        if kind is not None and at in self._ends:
            is_known = len(self.layers.owner[at].operations) == 1 and KINDS.get(operation.name) == kind
            return "" if at != self._ends[at] else operation.name if is_known else kind
        if operation.name in WEIGHT and operation.parameters:
            # Learned weights of several streams are a scale.
            return "mul" if kind == "scale" else operation.name if KINDS.get(operation.name) == "weight" else "weight"
        if KINDS.get(operation.name) == "weight" and not operation.parameters:
            # The weight is not a parameter of the network: a module in a plain dictionary, a weight that is computed.
            return ""
        if operation.is_dropout:
            return "dropout"
        if operation.name == "mul" and len(operation.parents) == 2:
            return "gate"
        if operation.name in PRODUCT | ATTENTION:
            return "attention" if len(passed_on(self.layers, at)) == 1 else ""
        return operation.name

    def _reads(self, at: int) -> tuple[int, ...]:
        parents, kind = self.flow[at].parents, self.kinds[at]
        if kind == "sum":
            return (self.sums[at].skip, *self.sums[at].branches)
        if kind in ("gate", "attention"):
            value = passed_on(self.layers, at)[0]
            return (value, *(parent for parent in parents if parent != value))
        if self._ends.get(at) == at:
            return tuple(sorted(self.layers.inputs(at)))[:1]
        return () if kind == "parameter" else parents

    def value(self, at: int) -> Moments | str:
        """Compute the moments of an operation's result from those of what it reads."""
        name, kind, reads = self.names[at], self.kinds[at], self.reads[at]
        is_root = not self.by_position or kind == "input"
        x = self.values[reads[0]] if reads else Moments.standard() if is_root else f"the values of {name}"
        if self.by_position and reads and isinstance(x, Moments) and name not in LAYOUT:
            known = f"the layout that {self.place(at)} reads" if kind in ("weight", "norm", "pool") else x
            x = placed(x, self.flow[reads[0]].shape) or known
        if isinstance(x, str) and kind != "norm":
            return x
        output: Moments | str = f"{self.flow[at].name}, an operation without a rule, at {self.flow[at].module}"
        try:
            output = RULES[name](self, at, x) if name in RULES else output
        except MissingValuesError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError):
            # A module that does not support float64 or this shape.
            output = f"{self.place(at)}, which raised an error"
        return output if self.by_position or isinstance(output, Moments) else x

    def of(self, at: int) -> Moments:
        """Return the moments of an operation, which are always known by channel."""
        moments = self.values[at]
        assert isinstance(moments, Moments)
        return moments

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
        fixed = operation.fixed[0] if len(operation.fixed) == 1 else Fixed()
        # A computed tensor is known if it is a parameter in another layout.
        if fixed.offset or [degree for _, degree in fixed.degrees] != [1.0]:
            return None
        return per_axis(self.model.get_parameter(fixed.parameters[0]).double(), shape, last=fixed.is_parameter)

    def shares(self, at: int) -> tuple[float, ...]:
        """Return the factors of an addition on its terms, as of `torch.add(x, y, alpha=2)` or `torch.lerp`."""
        operation, terms = self.flow[at], self.reads[at]
        number = next((float(part) for part in operation.arguments if isinstance(part, (int, float))), None)
        first = 1 - number if operation.name == "lerp" and number is not None else 1.0
        last = (1.0 if number is None else number) * (-1 if operation.name == "sub" else 1)
        is_weighted = len(terms) == 2 and operation.name in ("add", "sub", "lerp")
        return tuple(last if is_weighted and term == operation.operands[-1] else first for term in terms)

    def power_of(self, names: Iterable[str]) -> float:
        """Return the second moment of a sum of learned tensors."""
        return sum(self.factors.get(name, 1.0) ** 2 * mean_square(self.model.get_parameter(name)) for name in names)


def _is_whole(flow: Dataflow, run: LayerRun) -> bool:
    """Whether one rule computes a layer: a norm, or an activation that is more than one function of its input."""
    if run.layer.kind != "activation":
        return run.layer.kind in ("norm", "direction")
    operations = [flow[part] for part in run.operations]
    bends = [each.name for each in operations if each.name not in LAYOUT | {"add", "sub", "mul", "div"}]
    is_chain = all(len(each.parents) == 1 and all(part.parameters for part in each.fixed) for each in operations)
    return not (is_chain and len(bends) <= 1 and RULES.keys() >= {*bends})


def mean_square(tensor: Tensor) -> float:
    """Return the mean square of a learned tensor; raise MissingValuesError on the meta device."""
    if tensor.is_meta:
        raise MissingValuesError("A learned tensor has no values.")
    return float(tensor.detach().double().square().mean())
