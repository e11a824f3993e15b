"""What a trained network computes on calibration batches, its own outputs and those of its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from normless.folding.network import FoldedNorm

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """The outcome for one place of a trained network.

    Attributes:
        path: the norm's or layer's qualified name.
        outcome: `folded` into weights; `affine`, a learned factor and shift per channel; `fitted` to the norm's
            outputs; `same`, without a fit since nothing changed; `left`, not fitted for the `reason`.
        before, after: the distance of the outputs there from those before the conversion, ‖y' − y‖ / ‖y‖ over the
            calibration batches, before and after all fits; None if it was not measured.
    """

    path: str
    outcome: str
    before: float | None = None
    after: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        known = "" if self.before is None or self.after is None else f", distance {_arrow(self.before, self.after)}"
        return f"{self.path}: {self.outcome}{known}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class TrainedReport:
    """What a conversion of a trained network kept, on the calibration batches in evaluation; printable.

    Attributes:
        scheme: the text of the scheme.
        norms: the outcome for each norm, and for each layer that was fitted.
        distance: ‖y' − y‖ / ‖y‖ of the network's outputs y' from those before the conversion, before and after the
            fits.
        agreement: the share of rows of outputs, (B, classes) or (B, T, classes), whose largest value is the same,
            before and after the fits; None for other outputs.
    """

    scheme: str
    norms: tuple[Outcome, ...]
    distance: tuple[float, float]
    agreement: tuple[float, float] | None

    @property
    def counts(self) -> dict[str, int]:
        """The number of places with each outcome."""
        return dict(Counter(norm.outcome for norm in self.norms))

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        lines = [f"{self.scheme}: {total}", f"outputs: distance {_arrow(*self.distance)}"]
        if self.agreement is not None:
            lines[-1] += f", largest value the same in {_arrow(*(100 * share for share in self.agreement))} %"
        return "\n".join([*lines, *map(str, self.norms)])


def _arrow(before: float, after: float) -> str:
    return f"{before:.3g}" if before == after else f"{before:.3g} → {after:.3g}"


@dataclass
class Calibration:
    """What edits of trained networks share.

    Attributes:
        batches: the arguments of forward of each calibration batch; the example inputs if empty.
        folded: the outcome for each norm that `FoldNorms` folded, by path.
        given: the norms that got the running statistics of the batches, since they had none.
        rows: the outputs of each layer before it was changed, (C, n) for each run, by path in order of execution.
        axes: the axis of the channels of these outputs.
        outputs: the tensors that the network returned for each batch.
        outcomes: what became of each place.
        distance, agreement: of the network's outputs and of their largest logits, before and after the fits.
    """

    batches: Sequence[Call] = ()
    folded: dict[str, FoldedNorm] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    outputs: list[list[Tensor]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    distance: tuple[float, float] | None = None
    agreement: tuple[float, float] | None = None

    def report(self, scheme: str) -> TrainedReport | None:
        """Return the report, None if nothing was measured."""
        if self.distance is None:
            return None
        return TrainedReport(scheme, tuple(self.outcomes), self.distance, self.agreement)


def distance(made: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return ‖y' − y‖ / ‖y‖ over all tensors, or ‖y'‖ if y is zero; infinite if shapes differ."""
    squares = [0.0, 0.0]
    for a, b in zip(made, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        squares[0] += float((a.double() - b.double()).square().sum())
        squares[1] += float(b.double().square().sum())
    return sqrt(squares[0] / (squares[1] or 1.0))


def agreement(made: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> float | None:
    """Return the share of rows whose largest value is at the same place; None unless the output is rows of logits.

    Outputs have shape (B, classes) or (B, T, classes).
    """
    same: list[Tensor] = []
    for of_batch, known in zip(made, expected, strict=True):
        if len(known) != 1 or known[0].dim() not in (2, 3) or known[0].shape[-1] < 2:
            return None
        if of_batch[0].shape != known[0].shape:
            return None
        same.append((of_batch[0].argmax(-1) == known[0].argmax(-1)).flatten().double())
    return float(torch.cat(same).mean()) if same else None
