"""The dataflow of a network as plain data: operations, their inputs, dominators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain
from operator import and_
from typing import Any

from normless.recording._calls import Call
from normless.residual._operations import DROPOUT, LAYOUT, RECURRENT


@dataclass(frozen=True)
class Operand:
    """An argument of an operation that is the result of another operation, by its index in the flow."""

    index: int


@dataclass(frozen=True)
class Fixed:
    """A tensor argument that does not depend on the network's inputs.

    Attributes:
        parameters: the parameters from which it is computed.
        buffers: the buffers from which it is computed.
        random: whether it is drawn at random.
        rooted: whether its computation takes a square root, as of a stored variance.
        offset: the sum of the numbers added in its computation.
        is_parameter: whether it is itself a parameter.
        degrees: its degree of homogeneity in each parameter, 0 for one divided by its own norm (see `degrees_of`).
        moves: the operations that made it of one parameter, if they only select and rearrange elements, else None.
    """

    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    random: bool = False
    rooted: bool = False
    offset: float = 0.0
    is_parameter: bool = False
    degrees: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    moves: tuple[Operation, ...] | None = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Operation:
    """One operation whose result depends on the network's inputs.

    Attributes:
        name: its name without overload and in-place underscore: `relu` for `aten.relu_.default`.
        parents: the indices of the operations that it reads.
        parameters: the qualified names of the parameters that it reads, directly or through constant operations.
        added: those of `parameters` that it adds to its result, as β and biases.
        modules: the qualified names of the modules in whose forward it runs, outermost first.
        runs: the numbers of the runs of these modules, unique in the pass.
        shape: the shape of its result; None if that is not a tensor, or a size depends on values.
        floating: whether its result is of a floating-point or complex dtype.
        arguments: its arguments, with operations as `Operand` and other tensors as `Fixed`.
        in_place: whether it overwrites its first argument.
        subgraph: whether it runs a subgraph, as `torch.cond` does.
        made_by: the call in forward code that makes it, None if unknown.
    """

    name: str
    parents: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("",)
    runs: tuple[int, ...] = field(default=(0,), compare=False)
    shape: tuple[int, ...] | None = None
    floating: bool = True
    arguments: tuple[Any, ...] = ()
    in_place: bool = False
    subgraph: bool = False
    made_by: Call | None = None
    added: tuple[str, ...] = ()

    @property
    def fixed(self) -> tuple[Fixed, ...]:
        """The tensors among its arguments and their lists that do not depend on the network's inputs."""
        members = chain.from_iterable(
            argument if isinstance(argument, tuple) else (argument,) for argument in self.arguments
        )
        return tuple(member for member in members if isinstance(member, Fixed))

    @property
    def factors(self) -> tuple[str, ...]:
        """The parameters that it does more with than adding them to its result."""
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
        """The innermost module that runs it."""
        return self.modules[-1]

    @property
    def is_dropout(self) -> bool:
        """Whether it drops activations at random: active dropout or a product with a random mask (drop path)."""
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
        """Whether it multiplies its only input by a number or divides it by a number."""
        return self.name in {"mul", "div"} and len(self.parents) == 1 and bool(self.numbers)

    @property
    def stacked(self) -> int:
        """The number of layers in series that it runs: more than 1 only for a multi-layer recurrent operation."""
        layers = self.arguments[4] if self.name in RECURRENT else 1
        return layers if isinstance(layers, int) else 1


@dataclass
class Dataflow:
    """The operations between a network's inputs and outputs in execution order, referred to by index.

    Attributes:
        operations: the operations.
        outputs: the operations that the network returns.
        calls: all calls in forward code, including those on constants.
        called: the modules that run, including those that read no input, such as position embeddings.
        written: the names of the parameters that forward code overwrites.
        follows_values: whether control flow depends on integers in tensors, so that the operations hold only for the
            example inputs.
    """

    operations: list[Operation] = field(default_factory=list)
    outputs: frozenset[int] = frozenset()
    calls: list[Call] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    follows_values: bool = False
    written: set[str] = field(default_factory=set)

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
    def of_run(self) -> dict[int, list[int]]:
        """The operations that each run of a module makes in its own code."""
        own: dict[int, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.operations):
            own[operation.runs[-1]].append(index)
        return dict(own)

    @cached_property
    def calls_in(self) -> dict[str, list[Call]]:
        """The calls that the forward code of each module makes, in order."""
        calls: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            calls[call.module].append(call)
        return dict(calls)

    @cached_property
    def consumers(self) -> list[list[int]]:
        """For each operation, the operations that read it."""
        readers: list[list[int]] = [[] for _ in self.operations]
        for index, operation in enumerate(self.operations):
            for parent in operation.parents:
                readers[parent].append(index)
        return readers

    @cached_property
    def ancestors(self) -> list[int]:
        """For each operation, the set of its ancestors and itself as the bits of an integer."""
        ancestors: list[int] = []
        for index, operation in enumerate(self.operations):
            bits = 1 << index
            for parent in operation.parents:
                bits |= ancestors[parent]
            ancestors.append(bits)
        return ancestors

    def depends(self, index: int, on: int) -> bool:
        """Whether the operation at `index` is, or descends from, the operation at `on`."""
        return bool(self.ancestors[index] >> on & 1)

    def reads_parameters(self, index: int) -> bool:
        """Whether the operation at `index` or one of its ancestors reads a parameter."""
        return any(self[at].parameters and self.depends(index, at) for at in range(index + 1))

    @cached_property
    def dominators(self) -> list[int | None]:
        """For each operation, its immediate dominator: the last operation on all paths from inputs to it, or None."""
        dominators: list[int | None] = []
        # The operations on every path to an operation, including itself, as the bits of an integer.
        passed: list[int] = []
        for index, operation in enumerate(self.operations):
            # An operation on a class token alone is on no path from an input.
            common = reduce(and_, (passed[parent] for parent in operation.parents), -1) if operation.parents else 0
            common = -1 if operation.name == "parameter" else common
            passed.append(common | 1 << index)
            dominators.append(common.bit_length() - 1 if common > 0 else None)
        return dominators

    def between(self, start: int, end: int) -> list[int]:
        """Return the operations on paths from `start` (exclusive) to `end` (inclusive), in execution order."""
        inside = range(start + 1, end + 1)
        return [index for index in inside if self.depends(index, start) and self.depends(end, index)]

    def is_closed(self, path: Iterable[int], at: int) -> bool:
        """Whether only the path itself and the operation `at` read the operations of a path."""
        inside = {*path} - {at}
        readers = {reader for index in inside for reader in self.consumers[index]}
        return inside.isdisjoint(self.outputs) and readers <= inside | {at}

    def source(self, index: int, passes: Callable[[int], bool]) -> int:
        """Follow the first inputs of an operation back to the nearest operation that `passes` rejects."""
        while passes(index) and self[index].parents:
            index = self[index].parents[0]
        return index
