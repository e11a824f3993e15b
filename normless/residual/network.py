"""The map of a network: its residual blocks in execution order, and what lies before, between and after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

from normless.residual.blocks import Head, Layer, ResidualBlock, Role, Unresolved, paths_of
from normless.residual.graph import Dataflow


@dataclass(frozen=True)
class ResidualMap:
    """The residual structure of one network: its stem, its L blocks in execution order, its head.

    `trunk_layers` are those between blocks that belong to none of them. `blocks` are the outermost; `walk` visits
    those inside their branches too. `unresolved` is what could not be placed. `flow` is the dataflow that the map was
    read from, None for a network that states its structure. `heads` are the weight layers that make the outputs,
    where the dataflow is known. `elsewhere` are the paths of layers that run outside the map, too, where it is a part
    of a network's.
    """

    blocks: tuple[ResidualBlock, ...]
    stem_layers: tuple[Layer, ...] = ()
    trunk_layers: tuple[Layer, ...] = ()
    head_layers: tuple[Layer, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    flow: Dataflow | None = field(default=None, compare=False, repr=False)
    heads: tuple[Head, ...] = field(default=(), compare=False)
    elsewhere: frozenset[str] = frozenset()

    @property
    def depth(self) -> int:
        """L, the number of residual blocks (not of layers), those inside another's branch not counted."""
        return len(self.blocks)

    def walk(self) -> Iterator[ResidualBlock]:
        """Every block, each before those inside its branch."""
        return chain.from_iterable(block.walk() for block in self.blocks)

    def without_global_skips(self) -> ResidualMap:
        """The map with the blocks under a global skip path in its place; its own layers come to the trunk."""
        blocks = list(self.blocks)
        trunk = list(self.trunk_layers)
        while (at := next((at for at, block in enumerate(blocks) if block.is_global), None)) is not None:
            inside = {layer for inner in blocks[at].inner for layer in inner.layers}
            trunk += [layer for layer in blocks[at].layers if layer not in inside]
            blocks[at : at + 1] = blocks[at].inner
        return replace(self, blocks=tuple(blocks), trunk_layers=tuple(dict.fromkeys(trunk)))

    def within(self, paths: Iterable[str]) -> ResidualMap:
        """The map of what is at or under these qualified names: modules, or blocks by name.

        A block is there with all of its layers or not at all; of one that is not, the layers there come to the trunk.
        """
        names = tuple(paths)

        def kept(block: ResidualBlock) -> tuple[ResidualBlock, ...]:
            if block.name in names or is_within(block.name.partition("#")[0], names):
                return (block,)
            return tuple(chain.from_iterable(map(kept, block.inner)))

        def chosen(layers: Iterable[Layer]) -> tuple[Layer, ...]:
            return tuple(one for one in layers if one not in inside and is_within(one.path, names))

        blocks = tuple(chain.from_iterable(map(kept, self.blocks)))
        inside = {layer for block in blocks for layer in block.layers}
        around = [one for one in self.blocks if any(is_within(name, [one.name.partition("#")[0]]) for name in names)]
        rest = chosen(dict.fromkeys(layer for block in around for layer in block.layers))
        part = ResidualMap(
            blocks,
            chosen(self.stem_layers),
            chosen(self.trunk_layers) + rest,
            chosen(self.head_layers),
            unresolved=tuple(one for one in self.unresolved if is_within(one.path, names)),
            flow=self.flow,
        )
        left = {*self.layers()} - {*part.layers()}
        return replace(part, elsewhere=frozenset(layer.path for layer in left))

    def with_shared_once(self) -> ResidualMap:
        """The map with the runs of shared modules as one: of a Siamese network, or of a block that runs repeatedly.

        Blocks of the same layers and the same sum are one, with the `levels` of all. A layer outside blocks that ran
        before is left out.
        """
        blocks: dict[Any, ResidualBlock] = {}
        for block in self.blocks:
            sites = tuple((site.made_by.spot, site.branch) for site in block.sites)
            key = (tuple(layer.path for layer in block.layers), sites, block.sum)
            known = blocks.setdefault(key, block)
            if known is not block:
                blocks[key] = replace(known, levels=tuple(dict.fromkeys((*known.levels, *block.levels))))
        first = {layer.path for layer in self.layers() if not layer.call}

        def once(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(layer for layer in layers if not layer.call or layer.path not in first)

        stem, trunk, head = map(once, (self.stem_layers, self.trunk_layers, self.head_layers))
        return replace(self, blocks=tuple(blocks.values()), stem_layers=stem, trunk_layers=trunk, head_layers=head)

    def with_every_norm(self) -> ResidualMap:
        """The map in which normalizations that define outputs or attention logits are norms like any other."""

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
        """Path of the one head whose outputs are logits, else of the last weight layer after the blocks, or None."""
        logits = [head.path for head in self.heads if not head.obstacle]
        if len(logits) == 1:
            return logits[0]
        layers = self.head_layers if self.blocks else self.stem_layers
        return next(reversed(paths_of(layers, "weight")), None)

    @cached_property
    def norms(self) -> dict[str, Role]:
        """The role of every normalization, by path: which γ it has (Kim et al., figures 1, 2 and 4).

        `last`: the last norm of a branch, or the norm after the sum of a branch that has none, as in
        post-norm transformers (γ_last). `down`: on a skip path, or before the fork of a block whose skip path
        has a weight layer (γ_down). `stem`: before the first block, and before its fork where weight layers of its
        own are too (γ_0). `other`: the rest (γ_others), and
        all of a network without blocks.
        """
        roles: dict[str, Role] = {layer.path: "other" for layer in self.layers() if layer.kind == "norm"}

        def give(role: Role, layers: Iterable[Layer]) -> None:
            # Where a module runs repeatedly, as in a Siamese network, its first run decides.
            norms = (layer for layer in layers if layer.kind == "norm")
            roles.update({one.path: role for one in norms if not (one.call and one.path in roles)})

        give("stem" if self.blocks else "other", self.stem_layers)
        give("other", self.trunk_layers + self.head_layers)
        # An inner block comes after the one around it, so that it decides the roles of its own norms.
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
        """By path the normalizations that are not of the trunk, and why no scheme removes them unless asked."""
        return {layer.path: layer.reason for layer in self.layers() if layer.kind == "direction"}

    @cached_property
    def by_path(self) -> dict[str, Layer]:
        """The layer at every path; of a module that runs several times, its first call."""
        return {layer.path: layer for layer in self.layers() if layer.call == 0}

    @cached_property
    def readers(self) -> dict[str, list[Layer]]:
        """For the path of each layer the layers that read its output unchanged."""
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
        """Every layer once, in execution order but for the trunk's, which come after the blocks."""
        return iter(self._layers)

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        blocks = (layer for block in self.blocks for layer in block.layers)
        return tuple(dict.fromkeys(chain(self.stem_layers, blocks, self.trunk_layers, self.head_layers)))

    def to_dict(self) -> dict[str, Any]:
        """The map as plain data, ready for JSON; blocks inside a branch are the `inner` of the block around them."""

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

    def __str__(self) -> str:
        from normless.residual.table import format_map

        return format_map(self)


def is_within(path: str, names: Iterable[str]) -> bool:
    """Whether a module or a layer is at or under one of these qualified names."""
    return any(name == "" or path == name or path.startswith((f"{name}.", f"{name}:")) for name in names)


def _main_norms(layers: tuple[Layer, ...]) -> list[Layer]:
    """The norms of a branch outside its gates, or those of the gates where there are no others."""
    norms = [layer for layer in layers if layer.kind == "norm"]
    return [layer for layer in norms if not layer.gating] or norms
