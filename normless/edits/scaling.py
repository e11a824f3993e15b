"""Find the parameter that sets the scale of a weight layer, and let weight layers start at zero."""

from __future__ import annotations

from torch import nn

from normless.edits.surgery import Surgery
from normless.residual import Layer


def scaling_parameter(surgery: Surgery, layer: Layer) -> str:
    """Return the name of the parameter that sets the scale of a weight layer's output: its weight or its gain.

    Raises:
        UnsupportedEditError: the weight is divided by its own norm and has no gain.
    """
    weights = [name for name in layer.parameters if name not in layer.shifts]
    largest = max(weights, key=lambda weight: surgery.parameter(weight).numel())
    name = layer.gamma if largest in layer.scale_free else largest
    if name is None:
        reason = "its weight is divided by its own norm, so its scale has no effect and zeros are undefined"
        raise surgery.unsupported(layer.path, f"{reason}; skipinit multiplies the branch instead")
    return name


def start_at_zero(surgery: Surgery, path: str, weight: bool = True) -> None:
    """Let the weight and biases of the layer at `path` start at zero; only its biases if `weight` is False."""
    layer = surgery.map.by_path[path]
    if weight and ":" not in path and isinstance(surgery.get(path), nn.RNNBase):
        raise surgery.unsupported(path, "it is a recurrent layer, and its output is not proportional to one weight")
    scaling = [scaling_parameter(surgery, layer)] if weight else []
    for name in (*scaling, *layer.shifts):
        nn.init.zeros_(surgery.parameter(name))
    surgery.zeroed.update(scaling)
    if weight:
        surgery.record(path, "gain = 0" if scaling == [layer.gamma] else "weight = 0")
