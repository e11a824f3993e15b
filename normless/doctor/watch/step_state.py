"""The data of the current step of a watched training."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from torch import Tensor

from normless.doctor.facts.replay import Outputs, Replay


@dataclass
class StepState:
    """The data of the current step: tensors, and the numbers that were read from them."""

    losses: list[Tensor] = field(default_factory=list)
    norms: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    lost: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    seen: Replay | None = None
    passes: int = 0
    loss_tensor: weakref.ref[Tensor] | None = None
    outputs: Outputs | None = None
    held: dict[int, dict[str, Tensor]] = field(default_factory=dict)
