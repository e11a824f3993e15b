"""Edits that add biases: one per channel (ZeroInit), scalars before layers (Fixup) and after ResNet-V1 sums."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.edits._edit import Edit, edit
from normless.edits._modules import add_scalar, add_shift, affine, can_fold, sums_of
from normless.edits._surgery import Surgery
from normless.nn._activation import ShiftedActivation
from normless.nn._affine import one_element
from normless.residual import Layer, ResidualBlock


@edit
class ChannelBiases(Edit):
    """Add zero biases per output channel to every convolution and the classifier (ZeroInit, section 4, part 2).

    Existing biases of convolutions and the classifier become zero, except in a trained network. Biases of other
    linear layers are unchanged.
    """

    def apply(self, surgery: Surgery) -> None:
        trained = surgery.places.trained_norm is not None
        for layer in surgery.places.weight_layers():
            module: Any = None if ":" in layer.path else surgery.get(layer.path)
            bias = getattr(module, "bias", 0)
            if bias is None:
                module.bias = nn.Parameter(module.weight.new_zeros(len(module.weight)))
                surgery.record(layer.path, f"bias of {len(module.weight)} channels, zero")
            elif isinstance(bias, Tensor) and (isinstance(module, _ConvNd) or layer.path == surgery.map.classifier):
                if not trained:
                    nn.init.zeros_(bias)
                what = "stays: the network is trained" if trained else "becomes zero"
                surgery.record(layer.path, f"its bias of {len(bias)} channels {what}")


@edit
class ScalarBiases(Edit):
    """Add a zero scalar bias before every convolution, linear layer and activation (Fixup, rule 3).

    Layers that read the network's input or a direction, such as unit vectors, get no bias. A convolution on the skip
    path shares the bias before the branch's first weight layer; an identity skip path has no bias. A bias before or
    after an activation is part of the activation. If that is not a ReLU, or not a module, the bias is part of the
    bias of the layer before it. ResNet-110 gains 218 parameters.
    """

    def apply(self, surgery: Surgery) -> None:
        done: set[tuple[str, int]] = set()
        self._sequence(surgery, surgery.map.stem_layers, done)
        for block in surgery.places.blocks():
            self._sequence(surgery, block.shared_layers, done)
            self._sequence(surgery, block.branch_layers, done, owned=block.shared_layers)
            self._skip(surgery, block, done)
            _bias_after_sum(surgery, block)
        self._sequence(surgery, surgery.map.trunk_layers, done)
        self._sequence(surgery, surgery.map.head_layers, done)

    def _sequence(
        self, surgery: Surgery, layers: tuple[Layer, ...], done: set[tuple[str, int]], owned: tuple[Layer, ...] = ()
    ) -> None:
        """Add biases before the layers of a path that are not `done`; the layers `owned` feed only this block."""
        inside = {layer.path for layer in (*owned, *layers)}
        is_left = surgery.places.is_left
        data_reader = next((layer for layer in surgery.map.stem_layers if is_left(layer)), None)
        for layer in layers:
            if layer.kind not in ("weight", "activation") or layer == data_reader or not is_left(layer):
                continue
            # An attention over two streams is on the branches of two blocks.
            if (layer.path, layer.call) in done or _has(surgery, layer, "input_bias"):
                continue
            done.add((layer.path, layer.call))
            source = surgery.places.input_of(layer)
            if source is not None and source.kind == "direction":
                surgery.record(layer.path, f"no bias before it: {source.path} defines what it reads")
                continue
            if source is not None and (source.path not in inside or _has(surgery, source, "output_bias")):
                source = None
            self._before(surgery, layer, source)

    def _before(self, surgery: Surgery, layer: Layer, source: Layer | None) -> None:
        """Add a bias before `layer`, folded into `source` if that feeds only this layer."""
        if layer.kind == "weight" and ":" in layer.path:
            reason = "it is a parameter that forward code multiplies by, and no layer that takes a bias; make it a "
            raise surgery.unsupported(
                layer.path, reason + "layer of torch.nn, or leave the biases out (biases=False)"
            )
        is_behind_weight = source is not None and source.kind == "weight"
        if layer.kind == "activation" and source is not None and is_behind_weight and not _is_relu(surgery, layer):
            add_scalar(surgery, source.path, "output_bias", one_element(0.0))
        elif layer.kind == "activation":
            add_shift(surgery, layer, "input_bias")
        elif source is not None and source.kind == "activation" and surgery.places.stands_alone(source):
            add_shift(surgery, source, "output_bias")
        else:
            add_scalar(surgery, layer.path, "input_bias", one_element(0.0))
        surgery.record(layer.path, "scalar bias before it, zero")

    def _skip(self, surgery: Surgery, block: ResidualBlock, done: set[tuple[str, int]]) -> None:
        """Share the bias before the branch's first weight layer with the skip path's; later layers have their own."""
        # A layer that computes factors for both paths has its bias from the branch.
        own = [layer for layer in block.skip_layers if layer not in block.branch_layers]
        weights = [layer for layer in own if layer.kind == "weight"]
        if weights and block.branch:
            shared = affine(surgery, block.branch[0]).input_bias
            if shared is not None:
                add_scalar(surgery, weights[0].path, "input_bias", shared)
                surgery.record(weights[0].path, f"shares the scalar bias before {block.branch[0]}")
        self._sequence(surgery, tuple(layer for layer in own if layer not in weights[:1]), done)


def _is_relu(surgery: Surgery, layer: Layer) -> bool:
    """Whether an activation is a ReLU module of its own, which computes its biases in one pass over its input."""
    module = surgery.get(layer.path) if surgery.places.stands_alone(layer) else None
    return type(module.activation if isinstance(module, ShiftedActivation) else module) is nn.ReLU


def _has(surgery: Surgery, layer: Layer, part: str) -> bool:
    """Whether a module that runs once has a scalar part."""
    return surgery.places.stands_alone(layer) and getattr(surgery.get(layer.path), part, None) is not None


@edit
class BiasAfterSum(Edit):
    """Add a zero scalar bias before every activation after a sum, as in ResNet-V1 (ZeroInit, section 5)."""

    def apply(self, surgery: Surgery) -> None:
        if all(block.activation_after_sum is None for block in surgery.places.blocks()):
            raise surgery.unsupported("", "no residual sum is followed by an activation, as in ResNet-V1")
        for block in surgery.places.blocks():
            _bias_after_sum(surgery, block)


def _adds_plainly(surgery: Surgery, block: ResidualBlock) -> bool:
    """Whether a block's sum is skip path plus branch and nothing else."""
    is_lifted = any(addition.made_by in surgery.lifted.sums for addition in block.additions)
    return (block.sum is None and not is_lifted) or all(total.is_plain for total in sums_of(surgery, block))


def _bias_after_sum(surgery: Surgery, block: ResidualBlock) -> None:
    """Add b in φ(x + f(x) + b) if there is an activation φ: to the branch's end if possible, else to φ."""
    activation = next((layer for layer in block.after_sum if layer.kind == "activation"), None)
    if activation is None:
        return
    end = surgery.places.branch_end(block)
    plain = not surgery.places.left(block.after_sum, "norm") and _adds_plainly(surgery, block)
    if (
        plain
        and not _is_relu(surgery, activation)
        and end is not None
        and end.kind == "weight"
        and can_fold(surgery, end)
    ):
        add_scalar(surgery, end.path, "output_bias", one_element(0.0))
    else:
        add_shift(surgery, activation, "input_bias")
    surgery.record(activation.path, "scalar bias before it, after the sum, zero")
