"""The residual structure of a network as data: its layers and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from normless.lifting import Call, Place

Kind = Literal["weight", "norm", "direction", "activation", "scale", "dropout"]
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

    A `direction` is a normalization that is not one of the trunk, since the network returns its result or compares it
    with another, as an attention compares queries and keys; `reason` says so. No scheme removes it unless asked.

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
    `gamma`: 1 in norms of γ = 1 + w. `scale_free` are the parameters whose scale does not matter, since forward code
    divides each by its own norm. `made_by` is the call in forward code that makes a layer
    which is a function, and nothing else; None where that is unknown.
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
    scale_free: tuple[str, ...] = field(default=(), compare=False)
    reason: str = field(default="", compare=False)
    made_by: Call | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Head:
    """A weight layer whose result reaches an output of the network through no other weight layer.

    `obstacle` says why it is not a classifier whose logits may start at zero, and is empty where it is.
    """

    path: str
    obstacle: str = ""


@dataclass(frozen=True)
class Unresolved:
    """Something in a network that its map could not place: the module's qualified name, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the network itself'}: {self.reason}"


@dataclass(frozen=True)
class Site:
    """An addition in forward code: the call that adds, and which of its summands, 0 or 1, ends a branch."""

    made_by: Call
    branch: int


@dataclass(frozen=True)
class ResidualBlock:
    """One residual sum, x + f(x): what lies on its branch, on its skip path and around them.

    A sum of several branches, x + f(x) + g(x), is one block: `branch_layers` are those of all, `branches` those of
    each, in the order of the additions. `inner` are the blocks inside the branch, whose layers are among
    `branch_layers` too. `chain` is `m`, or None if all weight layers of the branch are in series.

    `shared_layers` belong to the block but lie before the fork, so that branch and skip path both read them (the
    shared pre-activation of a projecting Wide-ResNet block). `after_sum` are the block's layers after its sum: the
    ReLU of ResNet-V1, the norm of a post-norm transformer. `sum` is the module that adds, None for an operator in
    forward code. `ends_in_layer` says whether the sum adds the output of the branch's last layer as it is, with no
    gating, dropout or pooling in between. `sites` are the additions in forward code that join branches to the skip
    path, a single one in x + (f(x) + g(x)); none where a module adds, or an operator that does not add two tensors (a
    sum over a stack). `ends` has for each branch the last weight layer, norm or activation with nothing but factors
    after it (layer scale, dropout), or None; `last_weights` has the weight layers that it ends in, several after a
    concatenation, where they are known. `factor` is the product of the constants by which forward code multiplies
    what they return, of several branches the smallest. `is_global` says that blocks follow one another inside the
    branch: a global skip path, as in SRResNet or a U-Net. `interpolates` says that the sum is x + c·(f(x) − x), as
    that of torch.lerp: at f(x) = 0 it is not x. `levels` numbers the runs of the block among all blocks in
    series, where it is known. All other tuples are in execution order.
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
    factor: float = field(default=1.0, compare=False)
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
        """Paths of the activations on the branch, the shared ones first; those of gates are left out."""
        layers = self.shared_layers + self.branch_layers
        return paths_of(tuple(layer for layer in layers if not layer.gating), "activation")

    @property
    def activation_after_sum(self) -> str | None:
        """Path of the block's activation after the sum (ResNet-V1), or None."""
        return next(iter(paths_of(self.after_sum, "activation")), None)


def paths_of(layers: tuple[Layer, ...], kind: Kind) -> tuple[str, ...]:
    """The paths of the layers of a kind."""
    return tuple(layer.path for layer in layers if layer.kind == kind)
