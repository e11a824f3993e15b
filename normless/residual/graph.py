"""The dataflow of a network as plain data: operations, what each of them reads, who dominates whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain
from operator import and_
from typing import Any

from normless.lifting import Call
from normless.residual.operations import DROPOUT, LAYOUT, RECURRENT


@dataclass(frozen=True)
class Operand:
    """An argument of an operation that is itself an operation of the flow, by its index."""

    index: int


@dataclass(frozen=True)
class Fixed:
    """A tensor argument that does not depend on the network's inputs: the parameters and buffers it is computed from.

    `rooted` says that a square root was taken on the way, as of a stored variance; `offset` are the numbers added;
    `is_parameter` that it is a parameter as it is; `degrees` how it scales with each parameter, 0 for one that is
    divided by its own norm (see `degrees_of`).
    """

    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    random: bool = False
    rooted: bool = False
    offset: float = 0.0
    is_parameter: bool = False
    degrees: tuple[tuple[str, float], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Operation:
    """One operation whose result depends on the network's inputs.

    Attributes:
        name: without overload and in-place underscore: `relu` for `aten.relu_.default`.
        parents: indices of the operations it reads.
        parameters: qualified names of the parameters it reads, directly or through operations on them alone.
        added: those of `parameters` that it adds to its result, as β and biases.
        modules: qualified names of the modules whose forward it runs in, outermost first.
        call: which run of its module it belongs to, 0 for the first.
        shape: of its result, None where that is no tensor or a size depends on values. `floating`: whether that is
            of floating point.
        arguments: its arguments; operations as `Operand`, other tensors as `Fixed`.
        in_place: whether it overwrites its first argument.
        subgraph: whether it runs a graph of its own, as `torch.cond` does.
        made_by: the call in forward code that makes it, None where that is unknown.
    """

    name: str
    parents: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("",)
    call: int = 0
    shape: tuple[int, ...] | None = None
    floating: bool = True
    arguments: tuple[Any, ...] = ()
    in_place: bool = False
    subgraph: bool = False
    made_by: Call | None = None
    added: tuple[str, ...] = ()

    @property
    def fixed(self) -> tuple[Fixed, ...]:
        """Those of its arguments, and of the members of lists, that are tensors and do not depend on the inputs."""
        members = chain.from_iterable(one if isinstance(one, tuple) else (one,) for one in self.arguments)
        return tuple(member for member in members if isinstance(member, Fixed))

    @property
    def factors(self) -> tuple[str, ...]:
        """Those of its parameters that it does not only add to its result."""
        return tuple(name for name in self.parameters if name not in self.added)

    @property
    def numbers(self) -> list[float]:
        """The numbers among its first two arguments."""
        return [argument for argument in self.arguments[:2] if isinstance(argument, (int, float))]

    @property
    def operands(self) -> list[int]:
        """The operations among its first two arguments."""
        return [argument.index for argument in self.arguments[:2] if isinstance(argument, Operand)]

    @property
    def module(self) -> str:
        """The innermost module whose forward runs it."""
        return self.modules[-1]

    @property
    def is_dropout(self) -> bool:
        """Whether it drops activations at random: an active dropout, or a product with a random mask (drop path)."""
        if self.name in DROPOUT:
            rate, active = self.arguments[1], self.arguments[2]
            return bool(active) and rate != 0
        return self.name in {"mul", "div"} and any(source.random for source in self.fixed)

    @property
    def leaves_unchanged(self) -> bool:
        """Whether the result holds the first argument's values: copies, changes of layout, idle dropout, `+ 0`."""
        if self.name in LAYOUT:
            return len(self.parents) == 1
        if self.name in DROPOUT:
            return not self.is_dropout
        neutral = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}.get(self.name)
        return neutral is not None and len(self.parents) == 1 and self.numbers == [neutral]

    @property
    def is_factor(self) -> bool:
        """Whether it multiplies its only input by a number, or divides by one."""
        return self.name in {"mul", "div"} and len(self.parents) == 1 and bool(self.numbers)

    @property
    def stacked(self) -> int:
        """The number of layers in series that it runs: several in a recurrent operation of several."""
        layers = self.arguments[4] if self.name in RECURRENT else 1
        return layers if isinstance(layers, int) else 1


@dataclass
class Dataflow:
    """The operations between a network's inputs and its outputs, in execution order; an operation is its index.

    `calls` are all that forward code makes, also on no activation. `called` are the modules that run, also those that
    compute from no input, as of positions. `follows_values` says that the operations are those of the example inputs,
    since what runs depends on integers in tensors.
    """

    operations: list[Operation] = field(default_factory=list)
    outputs: frozenset[int] = frozenset()
    calls: list[Call] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    follows_values: bool = False

    def __getitem__(self, index: int) -> Operation:
        return self.operations[index]

    def __len__(self) -> int:
        return len(self.operations)

    @cached_property
    def parts(self) -> dict[Call, list[int]]:
        """The operations that each call makes."""
        parts: dict[Call, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.operations):
            if operation.made_by is not None:
                parts[operation.made_by].append(index)
        return dict(parts)

    @cached_property
    def consumers(self) -> list[list[int]]:
        """For every operation the ones that read it."""
        readers: list[list[int]] = [[] for _ in self.operations]
        for index, operation in enumerate(self.operations):
            for parent in operation.parents:
                readers[parent].append(index)
        return readers

    @cached_property
    def ancestors(self) -> list[int]:
        """For every operation the set of those it depends on, itself included, as the bits of an integer."""
        ancestors: list[int] = []
        for index, operation in enumerate(self.operations):
            bits = 1 << index
            for parent in operation.parents:
                bits |= ancestors[parent]
            ancestors.append(bits)
        return ancestors

    def depends(self, index: int, on: int) -> bool:
        """Whether the operation at `index` is, or descends from, the one at `on`."""
        return bool(self.ancestors[index] >> on & 1)

    def reads_parameters(self, index: int) -> bool:
        """Whether the operation at `index`, or one that it descends from, reads a parameter."""
        return any(self[at].parameters and self.depends(index, at) for at in range(index + 1))

    @cached_property
    def dominators(self) -> list[int | None]:
        """For every operation the last one that all paths from the inputs to it pass, None where there is none."""
        dominators: list[int | None] = []
        # All that every path to an operation passes, itself included, as the bits of an integer.
        passed: list[int] = []
        for index, operation in enumerate(self.operations):
            # What is made of a class token alone comes from no input, and so is on no path from one.
            common = reduce(and_, (passed[parent] for parent in operation.parents), -1) if operation.parents else 0
            common = -1 if operation.name == "parameter" else common
            passed.append(common | 1 << index)
            dominators.append(common.bit_length() - 1 if common > 0 else None)
        return dominators

    def between(self, start: int, end: int) -> list[int]:
        """The operations on paths from `start` (left out) to `end` (kept), in execution order."""
        inside = range(start + 1, end + 1)
        return [index for index in inside if self.depends(index, start) and self.depends(end, index)]

    def is_closed(self, path: Iterable[int], at: int) -> bool:
        """Whether everything on a path goes into the operation `at` and nowhere else."""
        inside = {*path} - {at}
        readers = {reader for index in inside for reader in self.consumers[index]}
        return inside.isdisjoint(self.outputs) and readers <= inside | {at}

    def source(self, index: int, passes: Callable[[int], bool]) -> int:
        """The first operation, from one back along what each reads first, that does not pass its input on."""
        while passes(index) and self[index].parents:
            index = self[index].parents[0]
        return index
