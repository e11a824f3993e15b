"""The mean of every channel before the activation that a layer reads."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from normless.probes import by_channel
from normless.residual import Layer, ResidualBlock, ResidualMap


class Preactivations:
    """Means of the channels that layers read, taken before the activation.

    Where a norm precedes the activation they are taken before the norm, whose output has the mean β. For a layer that
    does not read an activation directly (the first one, one after a pooling) they are those of its own input. An
    activation that works in place overwrites what it reads, and one that is not a module is not hooked; then the
    means are those of the layer or residual sum that it reads. `on_layer` and `on_sum` are called as a `Watcher`'s.

    Args:
        model: the network.
        residual_map: its map.
        layers: the weight layers whose channels are measured.
    """

    def __init__(self, model: nn.Module, residual_map: ResidualMap, layers: Iterable[Layer]) -> None:
        self.layers = set(layers)
        self.sums: dict[str, nn.Module] = {}
        self.sources: dict[Layer, str] = {}
        self._latest: dict[str, Tensor] = {}
        for layer in self.layers:
            activation = residual_map.by_path.get(layer.input or "")
            if activation is not None and activation.kind == "activation":
                self._find_source(model, residual_map, layer, activation)

    def _find_source(self, model: nn.Module, residual_map: ResidualMap, layer: Layer, activation: Layer) -> None:
        """The source of the values before an activation: a layer's input, a layer's output (`>`) or a sum (`+`)."""
        hooked = ":" not in activation.path and activation.called
        before = residual_map.by_path.get(activation.input or "")
        block = next((block for block in residual_map.walk() if activation in block.after_sum[:1]), None)
        if before is not None and before.kind == "norm" and ":" not in before.path and before.called:
            self.sources[layer] = before.path
        elif hooked and not activation.in_place:
            self.sources[layer] = activation.path
        elif before is not None:
            self.sources[layer] = f">{before.path}"
        elif block is not None and ":" not in layer.path:
            self.sources[layer] = f"+{block.name}"
            self.sums[block.name] = model.get_submodule(layer.path)

    def wants(self, layer: Layer) -> bool:
        """Whether this layer's input or output is needed."""
        used = set(self.sources.values())
        return layer in self.layers or layer.path in used or f">{layer.path}" in used

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """A layer has run."""
        used = set(self.sources.values())
        for source, values in ((layer.path, x), (f">{layer.path}", y)):
            if source in used:
                self._latest[source] = by_channel(module, values).mean(1)

    def on_sum(self, block: ResidualBlock, total: Tensor) -> None:
        """A residual sum was computed."""
        if block.name in self.sums:
            self._latest[f"+{block.name}"] = by_channel(self.sums[block.name], total).mean(1)

    def means(self, layer: Layer, module: nn.Module, x: Tensor) -> Tensor:
        """The means of the channels of a layer that is running, given its input: shape (C,)."""
        channels = by_channel(module, x)
        latest = self._latest.get(self.sources.get(layer, ""))
        return channels.mean(1) if latest is None or len(latest) != len(channels) else latest
