"""The residual map of a network: its blocks in execution order, and the layers before, between and after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

from normless.residual._blocks import Head, Layer, ResidualBlock, Role, Unresolved, paths_of
from normless.residual._graph import Dataflow


@dataclass(frozen=True)
class ResidualMap:
    """The residual structure of a network: its stem, its L blocks in execution order, its head.

    Attributes:
        blocks: the outermost blocks; `walk` also visits the blocks inside their branches.
        stem_layers: the layers before the first block.
        trunk_layers: the layers between blocks that belong to no block.
        head_layers: the layers after the last block.
        unresolved: the parts that could not be placed.
        flow: the dataflow from which the map was read.
        heads: the weight layers that compute the outputs.
        elsewhere: for a map of a part of a network, the paths of the layers that also run outside the part.
        alike: for the key of each layer of a later step of a loop, and for each of its additions, that of the first
            step (see `with_shared_once`).
    """

    blocks: tuple[ResidualBlock, ...]
    stem_layers: tuple[Layer, ...] = ()
    trunk_layers: tuple[Layer, ...] = ()
    head_layers: tuple[Layer, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    flow: Dataflow = field(default_factory=Dataflow, compare=False, repr=False)
    heads: tuple[Head, ...] = field(default=(), compare=False)
    elsewhere: frozenset[str] = frozenset()
    alike: Mapping[Hashable, Hashable] = field(default_factory=dict, compare=False, repr=False)

    @property
    def depth(self) -> int:
        """L, the number of residual blocks (not layers), without those inside the branch of another block."""
        return len(self.blocks)

    def walk(self) -> Iterator[ResidualBlock]:
        """Iterate over all blocks, each before the blocks inside its branch."""
        return chain.from_iterable(block.walk() for block in self.blocks)

    def without_global_skips(self) -> ResidualMap:
        """Replace each block with a global skip path by its inner blocks; its own layers move to the trunk."""
        blocks = list(self.blocks)
        trunk = list(self.trunk_layers)
        while (at := next((at for at, block in enumerate(blocks) if block.is_global), None)) is not None:
            inside = {layer for inner in blocks[at].inner for layer in inner.layers}
            trunk += [layer for layer in blocks[at].layers if layer not in inside]
            blocks[at : at + 1] = blocks[at].inner
        return replace(self, blocks=tuple(blocks), trunk_layers=tuple(dict.fromkeys(trunk)))

    def within(self, paths: Iterable[str]) -> ResidualMap:
        """Restrict the map to modules and blocks at or under these qualified names.

        A block is kept with all of its layers or not at all. If it is not kept, its layers under these names move to
        the trunk.
        """
        names = tuple(paths)

        def kept(block: ResidualBlock) -> tuple[ResidualBlock, ...]:
            if block.name in names or is_within(block.module, names):
                return (block,)
            return tuple(chain.from_iterable(map(kept, block.inner)))

        def chosen(layers: Iterable[Layer]) -> tuple[Layer, ...]:
            return tuple(layer for layer in layers if layer not in inside and is_within(layer.path, names))

        blocks = tuple(chain.from_iterable(map(kept, self.blocks)))
        inside = {layer for block in blocks for layer in block.layers}
        around = [block for block in self.blocks if any(is_within(name, [block.module]) for name in names)]
        rest = chosen(dict.fromkeys(layer for block in around for layer in block.layers))
        part = ResidualMap(
            blocks,
            chosen(self.stem_layers),
            chosen(self.trunk_layers) + rest,
            chosen(self.head_layers),
            unresolved=tuple(item for item in self.unresolved if is_within(item.path, names)),
            flow=self.flow,
        )
        left = {*self.layers()} - {*part.layers()}
        return replace(part, elsewhere=frozenset(layer.path for layer in left))

    def with_every_norm(self) -> ResidualMap:
        """Turn the normalizations that define outputs or attention logits into ordinary norms."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(changed, value))
            if isinstance(value, ResidualBlock):
                return replace(value, **{own.name: changed(getattr(value, own.name)) for own in fields(value)})
            return replace(value, kind="norm") if isinstance(value, Layer) and value.kind == "direction" else value

        names = ("blocks", "stem_layers", "trunk_layers", "head_layers")
        layers: dict[str, Any] = {name: changed(getattr(self, name)) for name in names}
        return replace(self, **layers)

    @property
    def stem(self) -> tuple[str, ...]:
        """Paths of the weight layers before the first block."""
        return paths_of(self.stem_layers, "weight")

    @property
    def classifier(self) -> str | None:
        """Path of the only head that computes logits, else of the last weight layer after the blocks, or None."""
        logits = [head.path for head in self.heads if not head.obstacle]
        if len(logits) == 1:
            return logits[0]
        layers = self.head_layers if self.blocks else self.stem_layers
        return next(reversed(paths_of(layers, "weight")), None)

    @cached_property
    def norms(self) -> dict[str, Role]:
        """The role of each normalization by path, which names its γ (Kim et al., figures 1, 2 and 4).

        `last` (γ_last): the last norm of a branch, or the norm after the sum if the branch has no norm, as in
        post-norm transformers. `down` (γ_down): a norm on a skip path, or before the fork of a block with a weight
        layer on its skip path. `stem` (γ_0): a norm before the first block, or before its fork if weight layers of
        the block come there too. `other` (γ_others): all other norms, and all norms of a network without blocks.
        """
        roles: dict[str, Role] = {layer.path: "other" for layer in self.layers() if layer.kind == "norm"}

        def give(role: Role, layers: Iterable[Layer]) -> None:
            # If a module runs repeatedly, as in a Siamese network, its first run decides.
            norms = (layer for layer in layers if layer.kind == "norm")
            roles.update({norm.path: role for norm in norms if not (norm.call and norm.path in roles)})

        give("stem" if self.blocks else "other", self.stem_layers)
        give("other", self.trunk_layers + self.head_layers)
        # An inner block comes after the block around it and so decides the roles of its own norms.
        for block in self.walk():
            has_stem = block is self.blocks[0] and any(layer.kind == "weight" for layer in block.shared_layers)
            give("stem" if has_stem else "down" if block.skip else "other", block.shared_layers)
            give("other", block.branch_layers)
            ends = [norms[-1] for branch in block.branches if (norms := _main_norms(branch))]
            give("last", ends)
            give("down", block.skip_layers)
            give("other" if ends else "last", block.after_sum)
        return roles

    @cached_property
    def directions(self) -> dict[str, str]:
        """For each normalization outside the trunk, by path, why no scheme removes it by default."""
        return {layer.path: layer.reason for layer in self.layers() if layer.kind == "direction"}

    @cached_property
    def by_path(self) -> dict[str, Layer]:
        """The layer at each path; for a module that runs several times, its first run."""
        return {layer.path: layer for layer in self.layers() if layer.call == 0}

    @cached_property
    def functions(self) -> dict[str, list[Layer]]:
        """The layers that are functions in forward code, by the path of the module."""
        functions: dict[str, list[Layer]] = defaultdict(list)
        for layer in self.layers():
            path, is_function, _ = layer.path.partition(":")
            if is_function:
                functions[path].append(layer)
        return dict(functions)

    @cached_property
    def readers(self) -> dict[str, list[Layer]]:
        """For the path of each layer, the layers that read its output directly."""
        readers: dict[str, list[Layer]] = defaultdict(list)
        for layer in self.layers():
            if layer.input is not None:
                readers[layer.input].append(layer)
        return dict(readers)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Paths of the modules that run more than once in a forward pass."""
        return self.elsewhere.union(layer.path for layer in self.layers() if layer.call)

    def layers(self) -> Iterator[Layer]:
        """Iterate over all layers once, in execution order except that the trunk's come after the blocks."""
        return iter(self._layers)

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        blocks = (layer for block in self.blocks for layer in block.layers)
        return tuple(dict.fromkeys(chain(self.stem_layers, blocks, self.trunk_layers, self.head_layers)))

    def to_dict(self) -> dict[str, Any]:
        """Convert the map to plain data for JSON; blocks inside a branch are listed as `inner`."""

        def plain(block: ResidualBlock) -> dict[str, Any]:
            return {
                "name": block.name,
                "branch": list(block.branch),
                "skip": list(block.skip),
                "identity_skip": block.identity_skip,
                "norms": list(block.norms),
                "activations": list(block.activations),
                "activation_after_sum": block.activation_after_sum,
                "m": block.m,
                "branches": [list(paths_of(branch, "weight")) for branch in block.branches],
                "gates": list(block.gates),
                "inner": [plain(inner) for inner in block.inner],
            }

        return {
            "depth": self.depth,
            "stem": list(self.stem),
            "blocks": [plain(block) for block in self.blocks],
            "norms": dict(self.norms),
            "directions": dict(self.directions),
            "heads": {head.path: head.obstacle for head in self.heads},
            "classifier": self.classifier,
            "unresolved": [{"path": item.path, "reason": item.reason} for item in self.unresolved],
        }

    def __repr__(self) -> str:
        return f"ResidualMap({self.depth} blocks, {len(self.norms)} norms, {len(self.unresolved)} unresolved)"

    def __str__(self) -> str:
        from normless.residual._table import format_map

        return format_map(self)

    def _repr_html_(self) -> str:
        from normless.residual._table import html_of_map

        return html_of_map(self)


def is_within(path: str, names: Iterable[str]) -> bool:
    """Whether a module or layer is at or under one of these qualified names."""
    return any(name == "" or path == name or path.startswith((f"{name}.", f"{name}:")) for name in names)


def _main_norms(layers: tuple[Layer, ...]) -> list[Layer]:
    """Return the norms of a branch outside its gates, or those of the gates if there are no others."""
    norms = [layer for layer in layers if layer.kind == "norm"]
    return [layer for layer in norms if not layer.gating] or norms
