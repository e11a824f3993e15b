"""The residual structure of a network as data: layers, blocks, and their map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from normless.lifting import Place
from normless.residual.graph import Dataflow

Kind = Literal["weight", "norm", "activation", "scale", "dropout"]
Role = Literal["last", "down", "stem", "other"]


@dataclass(frozen=True)
class Term:
    """An operation of a norm in forward code: its place, which operand of it goes on without the norm, times what."""

    place: Place
    operand: int
    factor: float = 1.0


@dataclass(frozen=True)
class Layer:
    """A weight layer, a normalization, an activation, a layer scale or a dropout: what an edit can change.

    `path` is the module's qualified name, or `MODULE:WHAT` for what a module's forward code does by itself.
    `input` is the path of the layer whose output this one reads unchanged, or None where something else lies
    between (a sum, a pooling, the network's own input). A module that runs several times in one forward pass is
    one layer each time, numbered by `call` = 0, 1, ….

    `gating` marks a layer that only computes a factor for the branch, as in squeeze-excite. `gamma` is the
    qualified name of the learned vector that scales the layer's channels: a norm's γ, the gain of a standardized
    weight, a layer scale. `parameters` are the names of all it reads, `shifts` of those that it adds. `called` is
    False where forward code uses a module's weight without calling the module, as attention does with its output
    projection. `in_place` is True where the layer overwrites its input. `terms` are the operations of a norm that
    forward code writes out, empty where one of them cannot be told from others. `offset` is what forward code adds to
    `gamma`: 1 in norms of γ = 1 + w.
    """

    path: str
    kind: Kind
    input: str | None = None
    call: int = 0
    gating: bool = False
    gamma: str | None = None
    parameters: tuple[str, ...] = field(default=(), compare=False)
    description: str = field(default="", compare=False)
    called: bool = field(default=True, compare=False)
    in_place: bool = field(default=False, compare=False)
    offset: float = field(default=0.0, compare=False)
    terms: tuple[Term, ...] = field(default=(), compare=False)
    shifts: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Unresolved:
    """Something in a network that its map could not place: the module's qualified name, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class Site:
    """An addition in the forward code of a module: the `index`-th there, counted from 0 in execution order.

    Only additions of two tensors count, and not those of the module's children. `branch` is the position, 0 or 1, of
    the summand that ends a branch. `total` is the number of additions there, by which another count of the code
    can be checked. `call` numbers the runs of the module.
    """

    module: str
    index: int
    branch: int
    total: int
    call: int = 0


@dataclass(frozen=True)
class ResidualBlock:
    """One residual sum, x + f(x): what lies on its branch, on its skip path and around them.

    A sum of several branches, x + f(x) + g(x), is one block: `branch_layers` are those of all, `branches` those of
    each, in the order of the additions. `inner` are the blocks inside the branch, whose layers are among
    `branch_layers` too. `chain` is `m`, or None if all weight layers of the branch are in series.

    `shared_layers` belong to the block but lie before the fork, so that branch and skip path both read
    them (the shared pre-activation of a projecting Wide-ResNet block). `after_sum` are the block's layers
    after its sum: the ReLU of ResNet-V1, the norm of a post-norm transformer. `sum` is the module that adds,
    None for an operator in forward code. `ends_in_layer` says whether the sum adds the output of the branch's last
    layer as it is, with no gating, dropout or pooling in between. `sites` are the additions in forward code that
    join branches to the skip path, a single one in x + (f(x) + g(x)); none where a module adds, or an operator that
    does not add two tensors (a sum over a stack). `ends` has for each branch the last weight layer, norm or
    activation with nothing but factors after it (layer scale, dropout), or None; `last_weights` has the weight
    layers that it ends in, several after a concatenation, where they are known. `is_global` says that blocks follow
    one another inside the branch: a global skip path, as in SRResNet or a U-Net. `interpolates` says that the sum is
    x + c·(f(x) − x), as that of torch.lerp: at f(x) = 0 it is not x. `levels` numbers the runs of the block among all
    blocks in series, where it is known. All other tuples are in execution order.
    """

    name: str
    branch_layers: tuple[Layer, ...]
    skip_layers: tuple[Layer, ...] = ()
    shared_layers: tuple[Layer, ...] = ()
    after_sum: tuple[Layer, ...] = ()
    identity_skip: bool = True
    ends_in_layer: bool = True
    sum: str | None = None
    parallel: tuple[tuple[Layer, ...], ...] = ()
    inner: tuple[ResidualBlock, ...] = ()
    chain: int | None = None
    sites: tuple[Site, ...] = field(default=(), compare=False)
    ends: tuple[Layer | None, ...] = field(default=(), compare=False)
    last_weights: tuple[tuple[Layer, ...], ...] = field(default=(), compare=False)
    is_global: bool = field(default=False, compare=False)
    interpolates: bool = field(default=False, compare=False)
    levels: tuple[int, ...] = field(default=(0,), compare=False)

    @property
    def branches(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each branch: one tuple for x + f(x), two for x + f(x) + g(x)."""
        return self.parallel or (self.branch_layers,)

    @property
    def m(self) -> int:
        """Weight layers in series on the branch, without gating ones: the m of Fixup's L^(-1/(2m-2))."""
        return len(self.branch) if self.chain is None else self.chain

    @property
    def gates(self) -> tuple[str, ...]:
        """Paths of the layers that only compute a factor for the branch, as squeeze-excite does."""
        return tuple(layer.path for layer in self.branch_layers if layer.gating)

    def walk(self) -> Iterator[ResidualBlock]:
        """The block and every block inside it, outer before inner."""
        yield self
        for block in self.inner:
            yield from block.walk()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer of the block: shared, branch, skip, then those after the sum."""
        return self.shared_layers + self.branch_layers + self.skip_layers + self.after_sum

    @property
    def branch(self) -> tuple[str, ...]:
        """Paths of the branch's weight layers in execution order, gating ones included."""
        return _paths(self.branch_layers, "weight")

    @property
    def skip(self) -> tuple[str, ...]:
        """Paths of the weight layers on the skip path; empty for an identity or parameter-free skip."""
        return _paths(self.skip_layers, "weight")

    @property
    def norms(self) -> tuple[str, ...]:
        """Paths of the block's normalizations."""
        return _paths(self.layers, "norm")

    @property
    def activations(self) -> tuple[str, ...]:
        """Paths of the activations on the branch, the shared ones first; those of gates are left out."""
        layers = self.shared_layers + self.branch_layers
        return _paths(tuple(layer for layer in layers if not layer.gating), "activation")

    @property
    def activation_after_sum(self) -> str | None:
        """Path of the block's activation after the sum (ResNet-V1), or None."""
        return next(iter(_paths(self.after_sum, "activation")), None)


@dataclass(frozen=True)
class ResidualMap:
    """The residual structure of one network: its stem, its L blocks in execution order, its head.

    `trunk_layers` are those between blocks that belong to none of them. `blocks` are the outermost; `walk` visits
    those inside their branches too. `unresolved` is what could not be placed. `flow` is the dataflow that the map was
    read from, None for a network that states its structure. `elsewhere` are the paths of layers that run outside the
    map, too, where it is a part of a network's.
    """

    blocks: tuple[ResidualBlock, ...]
    stem_layers: tuple[Layer, ...] = ()
    trunk_layers: tuple[Layer, ...] = ()
    head_layers: tuple[Layer, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    flow: Dataflow | None = field(default=None, compare=False, repr=False)
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
            sites = tuple(replace(site, call=0) for site in block.sites)
            key = (tuple(layer.path for layer in block.layers), sites, block.sum)
            known = blocks.setdefault(key, block)
            if known is not block:
                blocks[key] = replace(known, levels=tuple(dict.fromkeys((*known.levels, *block.levels))))
        first = {layer.path for layer in self.layers() if not layer.call}

        def once(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(layer for layer in layers if not layer.call or layer.path not in first)

        stem, trunk, head = map(once, (self.stem_layers, self.trunk_layers, self.head_layers))
        return replace(self, blocks=tuple(blocks.values()), stem_layers=stem, trunk_layers=trunk, head_layers=head)

    @property
    def stem(self) -> tuple[str, ...]:
        """Paths of the weight layers before the first block."""
        return _paths(self.stem_layers, "weight")

    @property
    def classifier(self) -> str | None:
        """Path of the network's last weight layer after the blocks, or None where there is none."""
        layers = self.head_layers if self.blocks else self.stem_layers
        return next(reversed(_paths(layers, "weight")), None)

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
                "branches": [list(_paths(branch, "weight")) for branch in block.branches],
                "gates": list(block.gates),
                "inner": [plain(inner) for inner in block.inner],
            }

        return {
            "depth": self.depth,
            "stem": list(self.stem),
            "blocks": [plain(block) for block in self.blocks],
            "norms": dict(self.norms),
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


def _paths(layers: tuple[Layer, ...], kind: Kind) -> tuple[str, ...]:
    return tuple(layer.path for layer in layers if layer.kind == kind)
