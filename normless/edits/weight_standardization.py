"""The edit that standardizes weights and gives them the gains of the activations they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from torch import nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.nn.standardized import scaled_std
from normless.residual import Layer, ResidualMap
from normless.residual.classify import kind_of
from normless.signal.activation_gain import activation_gain


@EDITS.register()
@dataclass(frozen=True)
class StandardizeWeights(Edit):
    """Every weight is standardized per output channel, with a learnable gain (Brock et al. 2021, equation 1).

        Ŵ_i = γ · g_i · (W_i - μ_i) / (σ_i · √fan-in),   γ = 1 / √Var[φ(z)], z ~ N(0, 1)

    with γ the gain of the activation φ that the layer reads on its own path, and 1 where it reads none. The weight
    carries γ, so that it costs nothing. The classifier and the gating layers of squeeze-excite stay as they are.
    """

    def apply(self, surgery: Surgery) -> None:
        """Standardize the weight layers and record the gain of each."""
        _check_removed(surgery)
        for path, ahead in _paths(surgery.map):
            # Of the path so far: one module may be an activation here and, further on, of the residual stream.
            inside = {layer.path for layer in ahead}
            for layer in path:
                if layer.kind == "weight" and not layer.gating and layer.path != surgery.map.classifier:
                    source = surgery.input_of(layer)
                    reads = source is not None and source.kind == "activation" and source.path in inside
                    self._standardize(surgery, layer, source if reads else None)
                inside.add(layer.path)

    def _standardize(self, surgery: Surgery, layer: Layer, activation: Layer | None) -> None:
        old = surgery.affine(layer.path)
        with surgery.refusing_at(layer.path):
            new = scaled_std(old)
        surgery.replace(layer.path, new)
        gain = 1.0 if activation is None else _gain(surgery, activation)
        new.scale *= gain
        surgery.record(layer.path, "weight standardized" if gain == 1 else f"weight standardized, × {gain:.4g}")


def _check_removed(surgery: Surgery) -> None:
    """Refuse a norm that held an activation, as those of timm do: no layer of the map stands for that."""
    for path in surgery.map.norms:
        rest = [] if ":" in path or path not in surgery.removed else list(surgery.get(path).modules())
        if any(kind_of(module) == "activation" for module in rest):
            raise surgery.unsupported(
                path, "an activation was part of this normalization, and the map does not say what reads it"
            )


def _gain(surgery: Surgery, activation: Layer) -> float:
    gain = activation_gain(module_of(surgery, activation))
    if not isfinite(gain):
        raise surgery.unsupported(activation.path, "the activation is constant, and no gain gives it a variance of 1")
    return gain


def module_of(surgery: Surgery, activation: Layer) -> nn.Module:
    """The module of an activation, whether it runs here alone or elsewhere too; a function becomes one."""
    return surgery.get(surgery.own_path(activation) if ":" in activation.path else activation.path)


def _paths(found: ResidualMap) -> Iterator[tuple[tuple[Layer, ...], tuple[Layer, ...]]]:
    """The layers of every path, and those ahead of it whose output feeds it and not the residual stream."""
    for outside in (found.stem_layers, found.trunk_layers, found.head_layers):
        yield outside, ()
    for block in found.blocks:
        yield block.shared_layers + block.branch_layers, ()
        yield block.skip_layers, block.shared_layers
