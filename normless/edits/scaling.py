"""The scale of a weight layer: the parameter that sets it, and a start at zero."""

from __future__ import annotations

from torch import nn

from normless.edits.surgery import Surgery
from normless.residual import Layer


def scaling_parameter(surgery: Surgery, layer: Layer) -> str:
    """The name of the parameter to whose scale a weight layer's output is proportional: its weight or the gain of it.

    Refused where the weight is divided by its own norm and has no gain.
    """
    weights = [name for name in layer.parameters if name not in layer.shifts]
    largest = max(weights, key=lambda weight: surgery.parameter(weight).numel())
    name = layer.gamma if largest in layer.scale_free else largest
    if name is None:
        reason = "its weight is divided by its own norm, so that its scale has no effect and zeros are undefined"
        raise surgery.unsupported(layer.path, f"{reason}; skipinit multiplies the branch instead")
    return name


def start_at_zero(surgery: Surgery, path: str, weight: bool = True) -> None:
    """Let the weight layer at `path` start at zero, its biases too; without `weight` its biases alone."""
    layer = surgery.map.by_path[path]
    if weight and ":" not in path and isinstance(surgery.get(path), nn.RNNBase):
        raise surgery.unsupported(path, "it is a recurrent layer, whose output is not proportional to one weight")
    scaling = [scaling_parameter(surgery, layer)] if weight else []
    for name in (*scaling, *layer.shifts):
        nn.init.zeros_(surgery.parameter(name))
    surgery.zeroed.update(scaling)
    if weight:
        surgery.record(path, "gain = 0" if scaling == [layer.gamma] else "weight = 0")
