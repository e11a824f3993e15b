"""What the residual structure of a network is, as data: layers, blocks, and the map of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Kind = Literal["weight", "norm", "activation"]
Role = Literal["last", "down", "stem", "other"]


@dataclass(frozen=True)
class Layer:
    """A weight layer, a normalization or an activation: what an edit can be made to.

    `path` is the module's qualified name. `input` is the path of the layer whose output this one reads
    unchanged, or None where something else lies between (a sum, a pooling, the network's own input). A module
    that runs several times in one forward pass is one layer each time, told apart by `call` = 0, 1, ….
    """

    path: str
    kind: Kind
    input: str | None = None
    call: int = 0
    description: str = field(default="", compare=False)


@dataclass(frozen=True)
class ResidualBlock:
    """One residual sum, x + f(x): what lies on its branch, on its skip path and around them.

    `shared_layers` belong to the block but lie before the fork, so that branch and skip path both read
    them (the shared pre-activation of a projecting Wide-ResNet block). `after_sum` are the block's layers
    behind its sum: the ReLU of ResNet-V1, the norm of a post-norm transformer. `sum` is the module that adds,
    None where the sum is an operator in the forward code. `ends_in_layer` says whether the sum adds the output of
    the branch's last layer as it is, with no gating, dropout or pooling in between. All tuples are in execution
    order.
    """

    name: str
    branch_layers: tuple[Layer, ...]
    skip_layers: tuple[Layer, ...] = ()
    shared_layers: tuple[Layer, ...] = ()
    after_sum: tuple[Layer, ...] = ()
    identity_skip: bool = True
    ends_in_layer: bool = True
    sum: str | None = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer of the block: shared, branch, skip, then those after the sum."""
        return self.shared_layers + self.branch_layers + self.skip_layers + self.after_sum

    @property
    def branch(self) -> tuple[str, ...]:
        """Paths of the branch's weight layers; their number is the m of Fixup's L^(-1/(2m-2))."""
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
        """Paths of the activations on the branch, the shared ones first."""
        return _paths(self.shared_layers + self.branch_layers, "activation")

    @property
    def activation_after_sum(self) -> str | None:
        """Path of the block's activation behind the sum (ResNet-V1), or None."""
        return next(iter(_paths(self.after_sum, "activation")), None)


@dataclass(frozen=True)
class ResidualMap:
    """The residual structure of one network: its stem, its L blocks in execution order, its head.

    `trunk_layers` are those between blocks that belong to none of them.
    """

    blocks: tuple[ResidualBlock, ...]
    stem_layers: tuple[Layer, ...] = ()
    trunk_layers: tuple[Layer, ...] = ()
    head_layers: tuple[Layer, ...] = ()

    @property
    def depth(self) -> int:
        """L, the number of residual blocks (not of layers)."""
        return len(self.blocks)

    @property
    def stem(self) -> tuple[str, ...]:
        """Paths of the weight layers before the first block."""
        return _paths(self.stem_layers, "weight")

    @property
    def classifier(self) -> str | None:
        """Path of the network's last weight layer behind the blocks, or None where there is none."""
        layers = self.head_layers if self.blocks else self.stem_layers
        return next(reversed(_paths(layers, "weight")), None)

    @cached_property
    def norms(self) -> dict[str, Role]:
        """The role of every normalization, by path: which γ it holds (Kim et al., figures 1, 2 and 4).

        `last`: the last norm of a branch, or the norm behind the sum of a branch that has none, as in
        post-norm transformers (γ_last). `down`: on a skip path, or before the fork of a block whose skip path
        has a weight layer (γ_down). `stem`: before the first block (γ_0). `other`: the rest (γ_others).
        """
        roles: dict[str, Role] = {}

        def give(role: Role, *paths: str) -> None:
            roles.update(dict.fromkeys(paths, role))

        give("stem", *_paths(self.stem_layers, "norm"))
        for block in self.blocks:
            give("down" if block.skip else "other", *_paths(block.shared_layers, "norm"))
            branch = _paths(block.branch_layers, "norm")
            give("other", *branch[:-1])
            give("last", *branch[-1:])
            give("down", *_paths(block.skip_layers, "norm"))
            give("other" if branch else "last", *_paths(block.after_sum, "norm"))
        give("other", *_paths(self.trunk_layers + self.head_layers, "norm"))
        return roles

    @cached_property
    def by_path(self) -> dict[str, Layer]:
        """The layer at every path; of a module that runs several times, its first call."""
        return {layer.path: layer for layer in self.layers() if layer.call == 0}

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Paths of the modules that run more than once in a forward pass."""
        return frozenset(layer.path for layer in self.layers() if layer.call)

    def layers(self) -> Iterator[Layer]:
        """Every layer, in execution order but for the trunk's, which come after the blocks."""
        yield from self.stem_layers
        for block in self.blocks:
            yield from block.layers
        yield from self.trunk_layers
        yield from self.head_layers

    def to_dict(self) -> dict[str, Any]:
        """The map as plain data, ready for JSON."""
        return {
            "depth": self.depth,
            "stem": list(self.stem),
            "blocks": [
                {
                    "name": block.name,
                    "branch": list(block.branch),
                    "skip": list(block.skip),
                    "identity_skip": block.identity_skip,
                    "norms": list(block.norms),
                    "activations": list(block.activations),
                    "activation_after_sum": block.activation_after_sum,
                }
                for block in self.blocks
            ],
            "norms": dict(self.norms),
            "classifier": self.classifier,
        }

    def __str__(self) -> str:
        from normless.residual.table import format_map

        return format_map(self)


def _paths(layers: tuple[Layer, ...], kind: Kind) -> tuple[str, ...]:
    return tuple(layer.path for layer in layers if layer.kind == kind)
