"""The places of a network where edits change it, as its residual map has them and earlier edits left them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property

from torch import nn

from normless.edits._batch_axis import BatchAxis
from normless.edits._log import Log
from normless.edits._projections import Projections
from normless.edits._trained import is_trained
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual._network import is_within
from normless.residual._shared import with_shared_once


class Places:
    """The places of a network.

    Attributes:
        map: the residual map of the network before the first edit, with modules that run repeatedly listed once. Its
            paths remain valid.
        only: the qualified names of the parts to convert, the whole network if empty; the map covers only these.
        runs: the number of runs of each layer before the first edit, by path.
        aliases: the further names of each module that has several, by the first.
        paths: the paths of the modules before the first edit.
        is_meta: whether the network before the first edit is on the meta device.
        trained_norm: the path of a norm that was trained before the first edit, or None.
    """

    def __init__(
        self, model: nn.Module, found: ResidualMap, log: Log, only: tuple[str, ...], original: nn.Module
    ) -> None:
        self.map, self.log, self.only = with_shared_once(found), log, only
        self.runs = Counter(layer.path for layer in found.layers())
        first: dict[nn.Module, str] = {}
        self.aliases: dict[str, list[str]] = defaultdict(list)
        for path, module in model.named_modules(remove_duplicate=False):
            if first.setdefault(module, path) != path:
                self.aliases[first[module]].append(path)
        self.paths = {*first.values()}
        self.is_meta = any(parameter.is_meta for parameter in original.parameters())
        norms = (layer for layer in self.map.layers() if layer.kind == "norm" and not self.is_meta)
        self.trained_norm = next((layer.path for layer in norms if is_trained(layer, original)), None)

    def covers(self, path: str) -> bool:
        """Whether a module is in the converted part of the network."""
        return not self.only or is_within(path, self.only)

    def is_left(self, layer: Layer) -> bool:
        """Whether no edit has removed the layer."""
        return layer.path not in self.log.removed

    def left(self, layers: Iterable[Layer], kind: str) -> list[Layer]:
        """Return the layers of a kind that no edit has removed."""
        return [layer for layer in layers if layer.kind == kind and self.is_left(layer)]

    def weight_layers(self) -> list[Layer]:
        """Return the remaining weight layers in execution order."""
        return self.left(self.map.layers(), "weight")

    def norms(self) -> list[Layer]:
        """Return all normalizations at their first run, removed or not."""
        return [self.map.by_path[path] for path in self.map.norms]

    def blocks(self) -> tuple[ResidualBlock, ...]:
        """Return the residual blocks after checking that there are any."""
        if not self.map.blocks:
            raise self.log.unsupported("", "it has no residual block")
        return self.map.blocks

    @cached_property
    def depth(self) -> int:
        """L, the number of blocks in series; a block that runs repeatedly counts each time."""
        return sum(len(block.levels) for block in self.blocks())

    def classifier(self) -> str:
        """Return the path of the classifier."""
        if self.map.classifier is None:
            raise self.log.unsupported("", "no classifier was found after its blocks")
        return self.map.classifier

    def stands_alone(self, layer: Layer) -> bool:
        """Whether a layer is a module that runs once, so that it can be changed in place."""
        return ":" not in layer.path and layer.path not in self.map.repeated

    def once(self, path: str) -> None:
        """Check that the layer at `path` runs once in a forward pass."""
        if path in self.map.repeated:
            reason = "this one module runs at several places of the network; give each place a module of its own, or "
            raise self.log.unsupported(path, reason + "convert other parts by only=")

    def input_of(self, layer: Layer) -> Layer | None:
        """Return the layer that now produces the input of this layer; removed norms pass their input on."""
        while layer.input is not None:
            source = self.map.by_path.get(layer.input)
            if source is None or self.is_left(source):
                return source
            layer = source
        return None

    def last_left(self, end: Layer | None) -> Layer | None:
        """Return a layer, or the layer that produced its input if it was removed."""
        return end if end is None or self.is_left(end) else self.input_of(end)

    def branch_end(self, block: ResidualBlock) -> Layer | None:
        """Return the layer with the output that the sum now adds, None if an operation follows it."""
        return self.last_left(block.ends[0]) if block.ends_in_layer and block.ends else None

    def last_weight(self, block: ResidualBlock, branch: tuple[Layer, ...] | None = None) -> str:
        """Return the path of the last weight layer of a block's branch, or of one of several, without gates."""
        layers = block.branch_layers if branch is None else branch
        weights = [layer.path for layer in layers if layer.kind == "weight" and not layer.gating]
        if not weights:
            raise self.log.unsupported(block.name, "its branch has no weight layer")
        return weights[-1]

    def read_by(self, path: str) -> list[int]:
        """Return the operations that the module at `path` reads in its first run; empty if unknown."""
        names = (path, *self.aliases.get(path, ()))
        own = {at for name in names for at in self._operations.get(name, ())}
        read = dict.fromkeys(parent for at in sorted(own) for parent in self.map.flow[at].parents)
        return [parent for parent in read if parent not in own]

    def input_shape(self, path: str) -> tuple[int, ...] | None:
        """Return the shape of the first tensor that the module at `path` reads, None if unknown."""
        return next((self.map.flow[at].shape for at in self.read_by(path)), None)

    @cached_property
    def _operations(self) -> dict[str, list[int]]:
        """The operations of the first run of each module, by qualified name."""
        operations: dict[str, list[int]] = defaultdict(list)
        first: dict[str, int] = {}
        for at, operation in enumerate(self.map.flow.operations):
            for name, run in zip(operation.modules, operation.runs, strict=True):
                if first.setdefault(name, run) == run:
                    operations[name].append(at)
        return operations

    @cached_property
    def batch_axis(self) -> BatchAxis:
        """Where the examples lie in each activation."""
        return BatchAxis(self.map.flow)

    @cached_property
    def projections(self) -> Projections:
        """The weights that make queries and keys."""
        flow, blocks = self.map.flow, [*self.map.walk()]
        sums = {at for block in blocks for addition in block.additions for at in flow.parts.get(addition.made_by, ())}
        modules = {block.sum for block in blocks} - {None}
        sums |= {at for at, operation in enumerate(flow.operations) if operation.module in modules}
        return Projections(flow, frozenset(sums))
