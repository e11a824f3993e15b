"""A network as a list of steps, the one description that moments are propagated along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import nn

Kind = Literal[
    "input", "parameter", "weight", "norm", "activation", "factor", "greatest", "average", "padding", "join", "add",
    "sum", "gate", "attention", "dropout", "layout", "other",
]  # fmt: skip

_UNSCALED: tuple[Kind, ...] = ("dropout", "layout", "other")


@dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        kind: `input` and `parameter` (a learned tensor, an embedding) begin a signal; `weight` is a convolution or
            linear layer; `greatest` and `average` are poolings; `padding` adds channels of zeros; `join` is a
            concatenation; `sum` is residual; `factor` multiplies by a constant or a learned scale; `layout` leaves
            the values as they are.
        reads: indices of earlier steps; of a `sum` skip path and branches, of a `gate` the value and the factor, of
            an `attention` the value and, where they are known, query and key.
        path: of the layer it is, else empty.
        parameters: names of the learned tensors it reads.
        shifts: of those, what a norm or a weight layer adds.
        module: what it applies; None where that is unknown.
        size: elements of a pooling that count as independent, the share of a padding that is not zero, a constant
            factor, the share of a convolution's taps that lie inside its input.
        shares: how much of a `join` each of `reads` is; the factors of a `sum` on skip path and branches, 0 for a
            branch that is computed and not added.
        shape: of what it reads in the traced pass, where the layout matters; None where that is unknown.
        tokens: for a `parameter` that is joined to activations, its first position there and their number.
        call: which run of the layer it is, 0 for the first.
    """

    kind: Kind
    reads: tuple[int, ...] = ()
    path: str = ""
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
        forks: where a residual block starts.
        totals: for every residual sum the step that its result is, a factor on the total included.
        outputs: what the network returns.
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
        """For every step those that read it."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for index, step in enumerate(self.steps):
            for read in step.reads:
                readers[read].append(index)
        return readers

    @cached_property
    def is_free(self) -> list[bool]:
        """Whether a step's scale makes no difference: every path from it to the network's end passes a norm."""
        free = [True] * len(self.steps)
        for index in reversed(range(len(free))):
            readers = self.readers[index]
            free[index] = index not in self.outputs and all(self[one].kind == "norm" or free[one] for one in readers)
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
        between: tuple[Kind, ...] = ("activation", "factor", "greatest", "average", "padding", *_UNSCALED)
        return any(self.steps[self.origin(read, between)].kind == "norm" for read in self.steps[index].reads[:1])

    def origin(self, index: int, passed: tuple[Kind, ...]) -> int:
        """The nearest step before a step, or itself, that is of none of these kinds."""
        while self.steps[index].kind in passed and self.steps[index].reads:
            index = self.steps[index].reads[0]
        return index

    def is_independent(self, one: int, other: int) -> bool:
        """Whether weights lie between two steps and anything that both are computed from."""
        first, second = (
            self.reachable([index], lambda at: () if self[at].kind == "weight" else self[at].reads)
            for index in (one, other)
        )
        return set(first).isdisjoint(second)

    def reachable(self, start: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[int]:
        """Some steps, those that follow them, and so on; each once."""
        reached, pending = dict[int, None](), list(start)
        while pending:
            at = pending.pop()
            if at not in reached:
                reached[at] = None
                pending += following(at)
        return list(reached)
