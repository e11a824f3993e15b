"""A network as the steps that a signal takes through it, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import nn

Kind = Literal[
    "input", "parameter", "weight", "norm", "activation", "factor", "greatest", "average", "padding", "join", "add",
    "sum", "gate", "attention", "other",
]  # fmt: skip

# Behind them a signal c times as large is c times as large, or almost so, as behind GELU.
_SCALES_ALONG = {
    "weight", "activation", "factor", "greatest", "average", "padding", "join", "add", "sum", "gate", "attention",
    "other",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step: what it does, and the earlier steps that it reads.

    Attributes:
        kind: `input` and `parameter` (a learned tensor, an embedding) begin a signal; `weight` is a convolution or
            linear layer; `greatest` and `average` are poolings; `padding` puts zeros beside it; `join` concatenates;
            `sum` is a residual one, of which the skip path alone is read; `gate` and `attention` read their values
            first; `factor` multiplies by a constant or a learned scale; `other` leaves a signal's scale as it is.
        reads: indices of the steps it reads; of a `gate` the value and the factor.
        path: of the layer it is, else empty.
        parameters: names of the learned tensors it reads.
        module: the elementwise function of an activation.
        size: elements of a pooling that count as independent, the share of a padding that is not zero, a constant
            factor, the share of a convolution's taps that lie inside its input.
        shares: for a `join`, how much of the result each of `reads` is.
        tokens: for a `parameter` that is joined to activations, its first position there and their number.
    """

    kind: Kind
    reads: tuple[int, ...] = ()
    path: str = ""
    parameters: tuple[str, ...] = ()
    module: nn.Module | None = None
    size: float = 1.0
    shares: tuple[float, ...] = ()
    tokens: tuple[int, int] | None = None


@dataclass
class Steps:
    """The steps of a network in execution order.

    Attributes:
        steps: they; a step is its index.
        forks: where a residual block starts.
        branch_ends: what a residual sum reads at its branches.
        outputs: what the network returns.
    """

    steps: list[Step] = field(default_factory=list)
    forks: set[int] = field(default_factory=set)
    branch_ends: dict[int, int] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, step: Step) -> int:
        """Add a step; its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    @cached_property
    def readers(self) -> list[list[int]]:
        """For every step those that read it, a residual sum at its branches included."""
        found: list[list[int]] = [[] for _ in self.steps]
        for index, step in enumerate(self.steps):
            for read in step.reads:
                found[read].append(index)
        for end, total in self.branch_ends.items():
            found[end].append(total)
        return found

    @cached_property
    def is_free(self) -> list[bool]:
        """Whether a step's scale makes no difference: whatever comes of it meets a norm before the network's end."""
        found = [True] * len(self.steps)
        for index in reversed(range(len(self.steps))):
            found[index] = index not in self.outputs and all(
                self.steps[reader].kind == "norm" or (self.steps[reader].kind in _SCALES_ALONG and found[reader])
                for reader in self.readers[index]
            )
        return found

    @cached_property
    def writers(self) -> set[int]:
        """The weight layers that a branch ends in, factors and changes of layout aside."""
        return {end for index in self.branch_ends if (end := self._last_weight(index)) is not None}

    def _last_weight(self, index: int) -> int | None:
        while self.steps[index].kind in ("factor", "other") and self.steps[index].reads:
            index = self.steps[index].reads[0]
        return index if self.steps[index].kind == "weight" else None

    def reads_norm(self, index: int) -> bool:
        """Whether what a step reads is a norm's output, with at most an activation, dropout or pooling between."""
        between = ("activation", "other", "factor", "greatest", "average", "padding")
        while self.steps[index].reads:
            (index,) = self.steps[index].reads[:1]
            if self.steps[index].kind == "norm":
                return True
            if self.steps[index].kind not in between:
                return False
        return False
