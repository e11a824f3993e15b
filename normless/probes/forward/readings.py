"""What every layer of a network reads in a pass: the shape of it, and whose output it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normless.probes.hooks.watcher import Setting, Watcher
from normless.residual import Layer, ResidualBlock

INPUTS = ""


class _Kept:
    """A tensor that is kept, so that no other takes its place in memory, with the name of what made it."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor = tensor
        self.name = name
        # Tensors of inference mode count no versions.
        self.version = None if tensor.is_inference() else tensor._version

    def is_read(self, x: Tensor, layer: Layer) -> bool:
        """Whether x, which a layer has read, is the tensor and was overwritten by none but this layer."""
        in_memory = x.data_ptr() == self.tensor.data_ptr() and x.numel() == self.tensor.numel()
        unchanged = self.version is None or self.tensor._version - self.version == int(layer.in_place)
        return in_memory and unchanged


@dataclass
class Readings(Watcher):
    """The shapes of what layers read, and which of them read a sum, or the network's input, unchanged.

    A map tells which layer's output a layer reads, but not where it reads something that no layer made: a sum, or a
    pooling of it. That is told here, by the memory the tensor lies in; a layer's output behind an idle dropout too.

    Attributes:
        inputs: the network's first floating-point input, or None.
        shapes: of what a layer reads, by path and call.
        sources: the block whose sum a layer reads, `INPUTS` for the network's input; layers that read neither are
            left out.
        layers: the path of the layer that ran before, by path and call of one that reads its output.
        examples: the size of the batch.
    """

    inputs: Tensor | None = None
    shapes: dict[tuple[str, int], torch.Size] = field(default_factory=dict, init=False)
    sources: dict[tuple[str, int], str] = field(default_factory=dict, init=False)
    layers: dict[tuple[str, int], str] = field(default_factory=dict, init=False)
    examples: int = field(default=1, init=False)

    def on_start(self, setting: Setting) -> None:
        """Nothing is read yet but the inputs."""
        self.shapes.clear()
        self.sources.clear()
        self.layers.clear()
        self._latest = None if self.inputs is None else _Kept(self.inputs, INPUTS)
        self._output: _Kept | None = None
        self.examples = 1 if self.inputs is None or not self.inputs.dim() else self.inputs.shape[0]

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Note what a layer reads."""
        key = layer.path, layer.call
        if self.inputs is None and not self.shapes:
            self.examples = x.shape[0]
        self.shapes[key] = x.shape
        if self._latest is not None and self._latest.is_read(x, layer):
            self.sources[key] = self._latest.name
        if self._output is not None and self._output.is_read(x, layer):
            self.layers[key] = self._output.name
        self._output = _Kept(y, layer.path)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The latest sum is kept until the next, so that no other tensor takes its place in memory."""
        self._latest = _Kept(total, block.name)

    def on_logits(self, logits: Tensor) -> None:
        """The pass is over."""
        self._latest = self._output = None
