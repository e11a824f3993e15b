"""Edits that draw the weights anew."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.edits.transformer import parts_of
from normless.initialization import INITIALIZATIONS as INITIALIZATIONS
from normless.initialization import Kind as Kind
from normless.residual import Layer


@EDITS.register()
@dataclass(frozen=True)
class Reinitialize(Edit):
    """Every weight layer's weight is drawn anew; layer biases become zero.

    A weight that embeds the input too stays: its scale is that of the input.

    Args:
        kind: the distribution. Variances: `he` 2/fan-out, `he_fan_in` 2/fan-in, `xavier`
            2/(fan-in + fan-out), `lecun` 1/fan-in, all normal; `orthogonal` has orthonormal rows or columns.
    """

    kind: Kind = "he"

    def apply(self, surgery: Surgery) -> None:
        """Draw every weight from torch's global generator."""
        if self.kind not in INITIALIZATIONS:
            raise surgery.unsupported("", f"{self.kind!r} is none of {', '.join(INITIALIZATIONS)}")
        tied_paths = surgery.tied_layers()
        for layer in surgery.weight_layers():
            tied = layer.path in tied_paths
            for weight in () if tied else _weights(surgery, layer):
                INITIALIZATIONS[self.kind](weight)
            for name in layer.parameters:
                if name.endswith("bias"):
                    nn.init.zeros_(surgery.model.get_parameter(name))
            surgery.record(
                layer.path, f"weight {'stays, since it embeds the input too' if tied else f'from {self.kind}'}"
            )


def _weights(surgery: Surgery, layer: Layer) -> list[Tensor]:
    """The weight of a layer, or each of those that an attention keeps in one."""
    weight = None if ":" in layer.path else getattr(surgery.get(layer.path), "weight", None)
    return [weight] if isinstance(weight, Tensor) else [part.rows(surgery) for part in parts_of(surgery, layer)]
