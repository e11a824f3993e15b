"""Record the dropout of a pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normless.diagnosis.flow import Call, Tracer
from normless.diagnosis.tape import KINDS


class Draws(Tracer):
    """Records the places and rates of the dropout that is active in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: dict[str, float] = {}

    def on_call(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Tensor], before: Any
    ) -> None:
        """Record dropout, or an attention with dropout."""
        rate = active_rate(call.name, args, kwargs)
        if rate > 0:
            self.dropped[call.place] = max(rate, self.dropped.get(call.place, 0.0))


def active_rate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the rate of a call of dropout or of torch's attention; 0 if it is not active or another call."""
    if name == "scaled_dot_product_attention":
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if KINDS.get(name) != "dropout":
        return 0.0
    is_active = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return float(kwargs.get("p", args[1] if len(args) > 1 else 0.5)) if is_active else 0.0
