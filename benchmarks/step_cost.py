"""What a training step of an image network asks of a processor: operations, and calls of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from normless.models import build_model

EXAMPLES = 2


@dataclass(frozen=True)
class StepCost:
    """Of a pass forward and back.

    Attributes:
        flops: floating-point operations of convolutions and matrix products per example, two for each product that is
            summed.
        calls: operators called, whatever the batch size; each starts a kernel, or a few.
    """

    flops: float
    calls: int


@cache
def step_cost(model: str, channels: int, side: int, classes: int) -> StepCost:
    """Count a step of the network before its scheme's edits, on square images; nothing is computed."""
    network = build_model(model, classes=classes, image_shape=(channels, side, side)).to("meta").train()
    images = torch.empty(EXAMPLES, channels, side, side, device="meta")
    labels = torch.empty(EXAMPLES, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as flops, _Calls() as calls:
        F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
    return StepCost(flops.get_total_flops() / EXAMPLES, calls.count)


class _Calls(TorchDispatchMode):
    """Counts operators that compute something; views only rename what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))
