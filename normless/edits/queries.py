"""What edits read of a network under conversion: its modules by path, and the map of what it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from normless.errors import MissingValuesError, UnsupportedEditError
from normless.nn.affine import takes_scalars
from normless.residual import Layer, ResidualBlock, ResidualMap


@dataclass
class Queries:
    """A network under conversion, and questions about it.

    Attributes:
        model: the copy that the edits change.
        map: the residual map of the network before the first edit; paths in it stay valid throughout.
        inputs, kwargs: example inputs, by position and by name, for edits that calibrate on data and for places that
            are operators in forward code; may be empty.
        edit: the edit that is being applied, for messages.
        removed: paths of the layers that edits removed.
        values_withheld: whether the model is a copy on torch's device `meta` of one that has values.

    Raises (methods whose answer the network may not have):
        UnsupportedEditError: names the edit, the module and the reason.
    """

    model: nn.Module
    map: ResidualMap
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    edit: object = None
    removed: set[str] = field(default_factory=set)
    values_withheld: bool = False

    def __post_init__(self) -> None:
        self.is_meta = any(parameter.is_meta for parameter in self.model.parameters())
        norms = (layer for layer in self.map.layers() if layer.kind == "norm" and not self.is_meta)
        self._trained_norm = next((layer.path for layer in norms if _is_trained(self.model, layer)), None)

    def trained_norm(self) -> str | None:
        """The path of a norm that was trained before the first edit, None in a network of fresh weights.

        Raises:
            MissingValuesError: the values of the weights are withheld.
        """
        if self.values_withheld:
            raise MissingValuesError("Whether a network is trained shows in the values of its weights.")
        return self._trained_norm

    def unsupported(self, path: str, reason: str) -> UnsupportedEditError:
        """The error that says which edit is not possible at which module, and why."""
        where = f"at {path}" if path else f"in this {type(self.model).__name__}"
        return UnsupportedEditError(f"{self.edit!r} is not possible {where}: {reason}.")

    @contextmanager
    def refusing_at(self, path: str, reason: str = "{}") -> Iterator[None]:
        """Name the edit and the module in the error of a layer or of a rewriting, which stands for {} in `reason`."""
        try:
            yield
        except ValueError as error:
            raise self.unsupported(path, reason.replace("{}", str(error).rstrip("."))) from error

    def get(self, path: str) -> nn.Module:
        """The module that is now at `path`."""
        return self.model.get_submodule(path)

    def once(self, path: str) -> None:
        """Check that the layer at `path` runs once in a forward pass."""
        if path in self.map.repeated:
            raise self.unsupported(
                path, "this one module runs at several places of the network; give each place a module of its own"
            )

    def single(self, path: str) -> nn.Module:
        """The module at `path`, which runs once."""
        self.once(path)
        return self.get(path)

    def is_left(self, layer: Layer) -> bool:
        """Whether no edit has removed the layer."""
        return layer.path not in self.removed

    def left(self, layers: Iterable[Layer], kind: str) -> list[Layer]:
        """The layers of a kind that no edit has removed."""
        return [layer for layer in layers if layer.kind == kind and self.is_left(layer)]

    def stands_alone(self, layer: Layer) -> bool:
        """Whether a layer is a module that runs once, so that it can be changed in place."""
        return ":" not in layer.path and layer.path not in self.map.repeated

    def can_fold(self, layer: Layer) -> bool:
        """Whether a weight layer is a module that takes scalar parts."""
        return self.stands_alone(layer) and layer.called and takes_scalars(self.get(layer.path))

    def input_of(self, layer: Layer) -> Layer | None:
        """The layer whose output this one now reads unchanged, where removed norms pass their input on."""
        source = layer.input
        while source is not None:
            found = self.map.by_path.get(source)
            if found is None or self.is_left(found):
                return found
            source = found.input
        return None

    def last_left(self, end: Layer | None) -> Layer | None:
        """A layer, or where it was removed the one whose output it read unchanged."""
        return end if end is None or self.is_left(end) else self.input_of(end)

    def weight_layers(self) -> list[Layer]:
        """Every weight layer that is left, in execution order."""
        return self.left(self.map.layers(), "weight")

    def weight_of(self, layer: Layer) -> nn.Parameter:
        """The weight of a weight layer: the largest of its parameters."""
        return max(map(self.model.get_parameter, layer.parameters), key=Tensor.numel)

    def tied_layers(self) -> set[str]:
        """Paths of weight layers whose weight is an embedding's too: to draw or zero it would change the input."""
        tables = embedding_weights(self.model)
        return {
            layer.path
            for layer in self.weight_layers()
            if any(id(self.model.get_parameter(name)) in tables for name in layer.parameters)
        }

    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The residual blocks, one at least."""
        if not self.map.blocks:
            raise self.unsupported("", "it has no residual block")
        return self.map.blocks

    def branch_end(self, block: ResidualBlock) -> Layer | None:
        """The layer whose output the sum now adds unchanged; None where an operation that is no layer follows it."""
        return self.last_left(block.ends[0]) if block.ends_in_layer and block.ends else None

    def last_weight(self, block: ResidualBlock, branch: tuple[Layer, ...] | None = None) -> str:
        """The path of the last weight layer of a block's branch, or of one of several; gates do not count."""
        layers = block.branch_layers if branch is None else branch
        weights = [layer.path for layer in layers if layer.kind == "weight" and not layer.gating]
        if not weights:
            raise self.unsupported(block.name, "its branch has no weight layer")
        return weights[-1]

    def classifier(self) -> str:
        """The path of the classifier."""
        if self.map.classifier is None:
            raise self.unsupported("", "no classifier was found after its blocks")
        return self.map.classifier

    def need_no_norms(self) -> None:
        """Check that no normalization is left."""
        for path in self.map.norms:
            if self.is_left(self.map.by_path[path]):
                raise self.unsupported(path, "this normalization is still there; RemoveNorms removes it before")


def embedding_weights(model: nn.Module) -> set[int]:
    """The `id` of every weight of an embedding."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}


def _is_trained(model: nn.Module, norm: Layer) -> bool:
    """Whether a norm has a γ that differs between channels, or a β that is not zero.

    Running statistics, which a forward pass alone changes, count where the norm has nothing to learn.
    """
    gamma = None if norm.gamma is None else model.get_parameter(norm.gamma)
    shifts = [name for name in norm.parameters if name != norm.gamma and name.endswith(("bias", "beta"))]
    beta = model.get_parameter(shifts[0]) if shifts else None
    if gamma is not None and gamma.numel() and bool((gamma != gamma.flatten()[0]).any()):
        return True
    if beta is not None and bool((beta != 0).any()):
        return True
    if any(one is not None and one.requires_grad for one in (gamma, beta)):
        return False
    module = None if ":" in norm.path else model.get_submodule(norm.path)
    starts = {"running_mean": 0.0, "running_var": 1.0}
    statistics = ((getattr(module, name, None), start) for name, start in starts.items())
    return any(isinstance(value, Tensor) and bool((value != start).any()) for value, start in statistics)
