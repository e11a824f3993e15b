"""What folding did with every norm of a network, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["folded", "affine", "kept"]
Side = Literal["before", "after"]


@dataclass(frozen=True)
class NormFate:
    """The outcome for one norm.

    Attributes:
        path: the norm's qualified name.
        outcome: `folded` into the weights of a layer; `affine`, a fixed factor and shift per channel in its place;
            `kept`, since it is no batch norm.
        layer: the qualified name of the layer it was folded into, else None.
        side: whether that layer comes `before` or `after` the norm.
        reason: why the norm was not folded; empty for one that was.
    """

    path: str
    outcome: Outcome
    layer: str | None = None
    side: Side | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.outcome == "folded":
            return f"{self.path}: folded into {self.layer} {self.side} it"
        return f"{self.path}: {self.outcome}: {self.reason}"


@dataclass(frozen=True)
class FoldReport:
    """The outcome for every norm of a network, in the order of its modules, those kept at the end; printable."""

    norms: tuple[NormFate, ...]

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many norms had each outcome."""
        outcomes = [norm.outcome for norm in self.norms]
        return {outcome: outcomes.count(outcome) for outcome in ("folded", "affine", "kept")}

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return "\n".join([f"{len(self.norms)} norms: {total}", *map(str, self.norms)])
