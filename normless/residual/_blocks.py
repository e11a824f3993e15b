"""The residual structure of a network as data: its layers and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from normless.recording._calls import Call
from normless.recording._places import Place

LayerKind = Literal["weight", "norm", "direction", "activation", "scale", "dropout"]
Role = Literal["last", "down", "stem", "other"]
FORWARD = "forward"
"""In names of blocks, the forward code of the network itself; no submodule can have this name."""


@dataclass(frozen=True)
class NormTerm:
    """An operation of a norm that forward code writes out.

    Attributes:
        place: its place in the code.
        operand: the position of the operand that replaces the operation when the norm is removed.
        factor: the factor by which that operand is multiplied.
    """

    place: Place
    operand: int
    factor: float = 1.0


@dataclass(frozen=True)
class Layer:
    """A weight layer, a normalization, an activation, a layer scale or a dropout.

    A `direction` is a normalization outside the trunk: the network returns its result or compares it with another
    activation, as an attention compares queries and keys. No scheme removes it by default.

    Attributes:
        path: the qualified name of the module, or `MODULE:NAME` for an operation in the module's forward code.
        kind: the kind of layer.
        input: the path of the layer that produces its input; None if a sum, a pooling or the network's input does.
        call: the number of the run, 0 for the first. A module that runs several times is one layer per run.
        gating: whether it only computes a factor for the branch, as in squeeze-excite.
        gamma: the qualified name of the vector that scales the channels: a norm's γ, the gain of a standardized
            weight, a layer scale.
        parameters: the names of the parameters that it reads.
        description: a few words for tables.
        called: False if forward code uses the module's weight without calling the module, as attention does with its
            output projection.
        in_place: whether it overwrites its input.
        offset: the number that forward code adds to `gamma`: 1 in norms with γ = 1 + w.
        terms: the operations of a norm that forward code writes out; empty if they cannot be separated from others.
        shifts: the names of the parameters that it adds.
        scale_free: the names of the parameters that forward code divides by their own norm.
        reason: why a `direction` is outside the trunk.
        made_by: the call in forward code that makes this layer, a function, and nothing else; None if unknown.
        beside: whether it does not read the layer before it in its row of the map, as one of several heads.
    """

    path: str
    kind: LayerKind
    input: str | None = None
    call: int = 0
    gating: bool = False
    gamma: str | None = None
    parameters: tuple[str, ...] = field(default=(), compare=False)
    description: str = field(default="", compare=False)
    called: bool = field(default=True, compare=False)
    in_place: bool = field(default=False, compare=False)
    offset: float = field(default=0.0, compare=False)
    terms: tuple[NormTerm, ...] = field(default=(), compare=False)
    shifts: tuple[str, ...] = field(default=(), compare=False)
    scale_free: tuple[str, ...] = field(default=(), compare=False)
    reason: str = field(default="", compare=False)
    made_by: Call | None = field(default=None, compare=False)
    beside: bool = field(default=False, compare=False)

    @property
    def key(self) -> Call | tuple[str, int]:
        """The call that makes it or, for a module, its path and run."""
        return self.made_by or (self.path, self.call)


@dataclass(frozen=True)
class Head:
    """A last weight layer: its result reaches an output of the network without passing another weight layer.

    `obstacle` says why the layer is not a classifier with logits that may start at zero; it is empty if it is one.
    """

    path: str
    obstacle: str = ""


@dataclass(frozen=True)
class Unresolved:
    """A part of a network that the map could not resolve: the module's qualified name and the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class Addition:
    """An addition in forward code: the call that adds, and the position of the branch among its summands, 0 or 1."""

    made_by: Call
    branch: int


@dataclass(frozen=True)
class ResidualBlock:
    """One residual sum, x + f(x): the layers on its branch, on its skip path and around them.

    A sum of several branches, x + f(x) + g(x), is one block. Tuples are in execution order.

    Attributes:
        name: the name of the block.
        branch_layers: the layers of all branches, including those of inner blocks.
        skip_layers: the layers on the skip path.
        shared_layers: the block's layers before the fork, which branch and skip path both read, as the shared
            pre-activation of a projecting Wide-ResNet block.
        after_sum: the block's layers after its sum: the ReLU of ResNet-V1, the norm of a post-norm transformer.
        identity_skip: whether the skip path is the identity.
        ends_in_layer: whether the sum adds the output of the branch's last layer directly, with no gating, dropout or
            pooling in between.
        sum: the path of the module that adds, None for an operator in forward code.
        parallel: the layers of each branch if there are several.
        inner: the blocks inside the branch.
        chain: the value of `m`; None if all weight layers of the branch are in series.
        additions: the additions in forward code of branches to the skip path, a single one for x + (f(x) + g(x));
            empty if a module adds, or an operator that does not add two tensors (a sum over a stack).
        ends: for each branch, the last weight layer, norm or activation if only factors (layer scale, dropout) follow
            it, else None.
        last_weights: for each branch, the weight layers that it ends in, if known; several after a concatenation.
        factor: the product of the constants by which forward code multiplies the output of a branch; the smallest of
            several branches.
        is_global: whether blocks follow one another inside the branch, as under the global skip path of SRResNet or a
            U-Net.
        interpolates: whether the sum is x + c·(f(x) − x), as in torch.lerp, which is not x for f(x) = 0.
        levels: the positions of the block's runs among all blocks in series, if known.
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
    additions: tuple[Addition, ...] = field(default=(), compare=False)
    ends: tuple[Layer | None, ...] = field(default=(), compare=False)
    last_weights: tuple[tuple[Layer, ...], ...] = field(default=(), compare=False)
    factor: float = field(default=1.0, compare=False)
    is_global: bool = field(default=False, compare=False)
    interpolates: bool = field(default=False, compare=False)
    levels: tuple[int, ...] = field(default=(0,), compare=False)

    @property
    def module(self) -> str:
        """The qualified name of the innermost module whose forward code contains the block; "" for the network."""
        path = self.name.partition("#")[0]
        return "" if path == FORWARD else path

    @property
    def branches(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each branch: one tuple for x + f(x), two for x + f(x) + g(x)."""
        return self.parallel or (self.branch_layers,)

    @property
    def m(self) -> int:
        """The number of weight layers in series on the branch, without gates: the m of Fixup's L^(-1/(2m-2))."""
        return len(self.branch) if self.chain is None else self.chain

    @property
    def gates(self) -> tuple[str, ...]:
        """Paths of the gating layers of the branch, as in squeeze-excite."""
        return tuple(layer.path for layer in self.branch_layers if layer.gating)

    def walk(self) -> Iterator[ResidualBlock]:
        """Iterate over the block and all blocks inside it, outer before inner."""
        yield self
        for block in self.inner:
            yield from block.walk()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers of the block: shared, branch, skip, after the sum."""
        return self.shared_layers + self.branch_layers + self.skip_layers + self.after_sum

    @property
    def branch(self) -> tuple[str, ...]:
        """Paths of the weight layers of the branch in execution order, including gates."""
        return paths_of(self.branch_layers, "weight")

    @property
    def skip(self) -> tuple[str, ...]:
        """Paths of the weight layers on the skip path; empty for an identity or parameter-free skip."""
        return paths_of(self.skip_layers, "weight")

    @property
    def norms(self) -> tuple[str, ...]:
        """Paths of the block's normalizations."""
        return paths_of(self.layers, "norm")

    @property
    def activations(self) -> tuple[str, ...]:
        """Paths of the activations on the branch, shared activations first, without those of gates."""
        layers = self.shared_layers + self.branch_layers
        return paths_of(tuple(layer for layer in layers if not layer.gating), "activation")

    @property
    def activation_after_sum(self) -> str | None:
        """Path of the activation after the sum (ResNet-V1), or None."""
        return next(iter(paths_of(self.after_sum, "activation")), None)


def paths_of(layers: tuple[Layer, ...], kind: LayerKind) -> tuple[str, ...]:
    """Return the paths of the layers of a kind."""
    return tuple(layer.path for layer in layers if layer.kind == kind)
