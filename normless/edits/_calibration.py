"""What edits of trained networks measure on calibration batches, and share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from torch import Tensor

from normless._internal.arguments import CallArguments


@dataclass
class Calibration:
    """What edits of trained networks share.

    Attributes:
        batches: the arguments of forward of each calibration batch; the example inputs if empty.
        rows: the outputs of each layer before it was changed, (C, n) for each run, by path in order of execution.
        axes: the axis of the channels of these outputs.
        outputs: the tensors that the network returned for each batch.
        folded: the outcome for each norm that was folded, by path.
        given: the norms that got the running statistics of the batches, since they had none.
        report: what the edits kept and fitted.
    """

    batches: Sequence[CallArguments] = ()
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    outputs: list[list[Tensor]] = field(default_factory=list)
    folded: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    report: Any = None


def distance(made: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return ‖y' − y‖ / ‖y‖ over all tensors, or ‖y'‖ if y is zero; infinite if shapes differ."""
    squares = [0.0, 0.0]
    for a, b in zip(made, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        squares[0] += float((a.double() - b.double()).square().sum())
        squares[1] += float(b.double().square().sum())
    return sqrt(squares[0] / (squares[1] or 1.0))
