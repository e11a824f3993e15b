"""Edits that draw the weights anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from normless.edits.edit import Edit, Surgery

Kind = Literal["he", "he_fan_in", "xavier", "lecun", "orthogonal"]

INITIALIZATIONS: dict[Kind, Callable[[Tensor], Tensor]] = {
    "he": partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"),
    "he_fan_in": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "lecun": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="linear"),
    "orthogonal": nn.init.orthogonal_,
}


@dataclass(frozen=True)
class Reinitialize(Edit):
    """Every weight layer's weight is drawn anew; layer biases become zero.

    Args:
        kind: the distribution. Variances: `he` 2/fan-out, `he_fan_in` 2/fan-in, `xavier`
            2/(fan-in + fan-out), `lecun` 1/fan-in, all normal; `orthogonal` has orthonormal rows or columns.
    """

    kind: Kind = "he"

    def apply(self, surgery: Surgery) -> None:
        """Draw every weight from torch's global generator."""
        if self.kind not in INITIALIZATIONS:
            raise surgery.unsupported("", f"{self.kind!r} is none of {', '.join(INITIALIZATIONS)}")
        for layer in surgery.weight_layers():
            module = surgery.get(layer.path)
            assert isinstance(module.weight, Tensor)
            INITIALIZATIONS[self.kind](module.weight)
            if isinstance(module.bias, Tensor):
                nn.init.zeros_(module.bias)
            surgery.record(layer.path, f"weight from {self.kind}")
