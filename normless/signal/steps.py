"""A network as a list of steps, along which moments are propagated."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import nn

from normless._internal.reach import reachable

Kind = Literal[
    "input", "parameter", "weight", "norm", "activation", "factor", "max_pool", "average_pool", "padding", "join",
    "add", "sum", "gate", "attention", "dropout", "layout", "other",
]  # fmt: skip

_UNSCALED: tuple[Kind, ...] = ("dropout", "layout", "other")


@dataclass(frozen=True)
class Step:
    """One step of a network's computation.

    Attributes:
        kind: `input` and `parameter` (a learned tensor, an embedding) begin a signal; `weight` is a convolution or
            linear layer; `max_pool` and `average_pool` are poolings; `padding` adds channels of zeros; `join` is a
            concatenation; `sum` is residual; `factor` multiplies by a constant or a learned scale; `layout` keeps
            the values.
        reads: the indices of the earlier steps that it reads. A `sum` reads the skip path and the branches, a `gate`
            the value and the factor, an `attention` the value and, if known, query and key.
        path: the path of its layer, empty if it is not a layer.
        place: the path of the module that runs it.
        parameters: the names of the learned tensors that it reads.
        shifts: those of `parameters` that a norm or a weight layer adds.
        module: the module that it applies, None if unknown.
        size: the number of independent elements of a pooling, the share of a padding that is not zero, a constant
            factor, or the share of a convolution's taps that lie inside its input.
        shares: the share of each of `reads` in a `join`; the factors of a `sum` on skip path and branches, 0 for a
            branch that is computed and not added.
        shape: the shape of its input in the traced pass where the layout matters, None if unknown.
        tokens: for a `parameter` that is joined to activations, its first position there and their number.
        call: the number of this run of the layer, 0 for the first.
    """

    kind: Kind
    reads: tuple[int, ...] = ()
    path: str = ""
    place: str = field(default="", kw_only=True)
    parameters: tuple[str, ...] = ()
    module: nn.Module | None = None
    size: float = 1.0
    shares: tuple[float, ...] = ()
    shape: tuple[int, ...] | None = None
    tokens: tuple[int, int] | None = None
    call: int = 0
    shifts: tuple[str, ...] = ()


@dataclass
class Steps:
    """The steps of a network in execution order.

    Attributes:
        forks: the steps at which residual blocks start.
        totals: for each residual sum, the step of its result, including a factor on the total.
        outputs: the steps that the network returns.
    """

    steps: list[Step] = field(default_factory=list)
    forks: set[int] = field(default_factory=set)
    totals: dict[int, int] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def append(self, step: Step) -> int:
        """Add a step and return its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each step, the steps that read it."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for index, step in enumerate(self.steps):
            for read in step.reads:
                readers[read].append(index)
        return readers

    @cached_property
    def is_free(self) -> list[bool]:
        """Whether the scale of each step is arbitrary: every path from it to the outputs passes a norm."""
        free = [True] * len(self.steps)
        for index in reversed(range(len(free))):
            readers = self.readers[index]
            free[index] = index not in self.outputs and all(
                self[reader].kind == "norm" or free[reader] for reader in readers
            )
        return free

    @cached_property
    def writers(self) -> set[int]:
        """The last weight layers of branches that only factors and changes of layout follow."""
        ends = {end for step in self.steps if step.kind == "sum" for end in step.reads[1:]}
        # The end of an empty branch is a fork.
        lasts = {self.origin(end, ("factor", *_UNSCALED)) for end in ends - self.forks}
        return {last for last in lasts if self.steps[last].kind == "weight"}

    def reads_norm(self, index: int) -> bool:
        """Whether a step reads a norm's output, with at most activations, dropout or poolings between them."""
        between: tuple[Kind, ...] = ("activation", "factor", "max_pool", "average_pool", "padding", *_UNSCALED)
        return any(self.steps[self.origin(read, between)].kind == "norm" for read in self.steps[index].reads[:1])

    def origin(self, index: int, passed: tuple[Kind, ...]) -> int:
        """Follow the first inputs of a step back, from itself on, to the nearest step not of the `passed` kinds."""
        while self.steps[index].kind in passed and self.steps[index].reads:
            index = self.steps[index].reads[0]
        return index

    def is_independent(self, first: int, second: int) -> bool:
        """Whether weight layers separate two steps from everything that both are computed from."""
        origins, other_origins = (
            reachable([index], lambda at: () if self[at].kind == "weight" else self[at].reads)
            for index in (first, second)
        )
        return set(origins).isdisjoint(other_origins)
