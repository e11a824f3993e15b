"""What an edit is, and the surgery it is carried out in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.edits.attention import attention_at
from normless.edits.lifted import Lifted
from normless.errors import UnsupportedEditError
from normless.lifting import LiftError
from normless.nn import ResidualSum, ScalarAffine, ShiftedActivation, scalar_affine
from normless.nn.affine import takes_scalars
from normless.registry import Registry
from normless.residual import Layer, ResidualBlock, ResidualMap


@dataclass(frozen=True)
class Change:
    """One change of one module: the edit that made it, the module's qualified name, what was done."""

    edit: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.edit}: {self.path or 'the network'}: {self.what}"


class Edit(ABC):
    """A change of a network at places that its residual map defines.

    Edits are frozen dataclasses, so that a scheme is data: it can be compared, printed and varied. One of another
    package is written `FILE.py:NAME(…)` or `MODULE:NAME(…)` in the text of a scheme, or is registered in `EDITS`.
    """

    @property
    def text(self) -> str:
        """How the edit is written in the text of a scheme."""
        names = [one.name for one in fields(self)] if is_dataclass(self) else []
        arguments = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{EDITS.text_of(type(self))}({arguments})"

    @abstractmethod
    def apply(self, surgery: Surgery) -> None:
        """Change `surgery.model` in place and record every change.

        Raises:
            UnsupportedEditError: the network offers no place for the edit; names the module and the reason.
        """


EDITS = Registry[type[Edit]]("edit")
"""Edits by name; `EDITS.register()` decorates a subclass of `Edit`."""


@dataclass
class Surgery:
    """A network under conversion: the modules by path, the map of what it was, the record of what was done.

    Attributes:
        model: the copy that the edits change.
        map: the residual map of the network before the first edit; paths in it stay valid throughout.
        inputs, kwargs: example inputs, by position and by name, for edits that calibrate on data and for places that
            are operators in forward code; may be empty.
        changes: what the edits did, in order.
        values_withheld: whether the model is a copy on torch's device `meta` of one that has values.
    """

    model: nn.Module
    map: ResidualMap
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    edit: Edit | None = None
    removed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    values_withheld: bool = False

    def __post_init__(self) -> None:
        self._lifted = Lifted(self.model, self.map, self.inputs, self.kwargs)

    def run(self, edit: Edit) -> None:
        """Apply one edit; what it records and refuses carries its name."""
        self.edit = edit
        edit.apply(self)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`, made by the edit that is being applied."""
        self.changes.append(Change(repr(self.edit), path, what))

    def unsupported(self, path: str, reason: str) -> UnsupportedEditError:
        """The error that says which edit finds no place at which module, and why."""
        where = f"at {path}" if path else f"in this {type(self.model).__name__}"
        return UnsupportedEditError(f"{self.edit!r} is not possible {where}: {reason}.")

    def get(self, path: str) -> nn.Module:
        """The module that is now at `path`."""
        return self.model.get_submodule(path)

    def single(self, path: str) -> nn.Module:
        """The module at `path`, which runs once in a forward pass.

        Raises:
            UnsupportedEditError: it runs more than once, so that a change for one place would change the others.
        """
        self.once(path)
        return self.get(path)

    def replace(self, path: str, module: nn.Module) -> None:
        """Put a module in the place of the one at `path`, in the same mode."""
        self.replaced.add(path)
        module.train(self.get(path).training)
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def is_left(self, layer: Layer) -> bool:
        """Whether no edit has removed the layer."""
        return layer.path not in self.removed

    def remove(self, path: str, rest: nn.Module) -> None:
        """Take the layer at `path` away, leaving `rest` in its place."""
        self.replace(path, rest)
        self.removed.add(path)

    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The residual blocks.

        Raises:
            UnsupportedEditError: the network has none.
        """
        if not self.map.blocks:
            raise self.unsupported("", "it has no residual block")
        return self.map.blocks

    def branch_end(self, block: ResidualBlock) -> Layer | None:
        """The layer whose output the sum now adds as it is, None where something that is no layer comes behind."""
        if not block.ends_in_layer or not block.ends:
            return None
        return self.last_left(block.ends[0])

    def last_left(self, end: Layer | None) -> Layer | None:
        """A layer, or where it was removed the one whose output it read unchanged."""
        return end if end is None or self.is_left(end) else self.input_of(end)

    def input_of(self, layer: Layer) -> Layer | None:
        """The layer whose output this one now reads unchanged: removed norms in between are looked through."""
        source = layer.input
        while source is not None:
            found = self.map.by_path.get(source)
            if found is None or self.is_left(found):
                return found
            source = found.input
        return None

    def affine(self, path: str) -> ScalarAffine:
        """The weight layer at `path`, made able to take scalar parts.

        Raises:
            UnsupportedEditError: scalars cannot be folded into it, or it runs at several places.
        """
        found = self.map.by_path.get(path)
        if ":" in path or (found is not None and not found.called):
            raise self.unsupported(path, "forward code uses its weight without calling a module that owns it")
        layer = self.single(path)
        try:
            scalar = scalar_affine(layer)
        except UnsupportedEditError as error:
            raise self.unsupported(path, str(error)) from error
        if scalar is not layer:
            self.replace(path, scalar)
        return scalar

    def activation(self, layer: Layer) -> ShiftedActivation:
        """An activation made able to take biases around it; a function, or one call of a shared module, becomes one.

        Raises:
            UnsupportedEditError: its place in the forward code cannot be made a module.
        """
        path = self.own_path(layer)
        module = self.get(path)
        if not isinstance(module, ShiftedActivation):
            module = ShiftedActivation(module)
            self.replace(path, module)
        return module

    def own_path(self, layer: Layer) -> str:
        """The path of a module that is this layer and no other."""
        if ":" not in layer.path and layer.path not in self.map.repeated:
            return layer.path
        try:
            return self._lifted.module_of(layer)
        except LiftError as error:
            raise self.unsupported(layer.path, str(error).rstrip(".")) from error

    def add_scalar(self, path: str, part: str, value: Tensor) -> None:
        """Give the weight layer at `path` a scalar part with this initial value, or share a given parameter.

        Raises:
            UnsupportedEditError: the layer cannot take it, or has it already.
        """
        layer = attention_at(self, path) or self.affine(path)
        try:
            layer.add_part(part, value)
        except UnsupportedEditError as error:
            raise self.unsupported(path, str(error)) from error

    def not_in_place(self, layer: Layer) -> None:
        """Stop a layer from overwriting its input, which something else may read once a norm between them is gone."""
        if layer.in_place:
            module = self.get(self.own_path(layer) if ":" in layer.path else layer.path)
            if getattr(module, "inplace", False):
                setattr(module, "inplace", False)  # noqa: B010 - no attribute that nn.Module knows

    def remove_function(self, layer: Layer) -> None:
        """Take a norm away that is a function in forward code, and the parameters that only it reads.

        Raises:
            UnsupportedEditError: it is written out in several operations, or its forward code cannot be rewritten.
        """
        try:
            self._lifted.drop(layer)
        except LiftError as error:
            raise self.unsupported(
                layer.path, f"the normalization is a function in the forward code: {str(error).rstrip('.')}"
            ) from error
        self.removed.add(layer.path)

    def last_weight(self, block: ResidualBlock) -> str:
        """The path of the weight layer that a block's branch ends in, gates aside.

        Raises:
            UnsupportedEditError: the branch has no weight layer.
        """
        weights = [layer.path for layer in block.branch_layers if layer.kind == "weight" and not layer.gating]
        if not weights:
            raise self.unsupported(block.name, "its branch has no weight layer")
        return weights[-1]

    def weight_of(self, layer: Layer) -> nn.Parameter:
        """The weight of a weight layer: the largest of its parameters."""
        return max(map(self.model.get_parameter, layer.parameters), key=Tensor.numel)

    def add_shift(self, layer: Layer, part: str) -> None:
        """Give an activation a zero scalar bias, `input_bias` or `output_bias`.

        Raises:
            UnsupportedEditError: the activation cannot take it, or has it already.
        """
        activation = self.activation(layer)
        try:
            activation.add_part(part, next(self.model.parameters()))
        except UnsupportedEditError as error:
            raise self.unsupported(layer.path, str(error)) from error

    def can_fold(self, layer: Layer) -> bool:
        """Whether a weight layer is a module that takes scalar parts."""
        return self.stands_alone(layer) and layer.called and takes_scalars(self.get(layer.path))

    def is_channels_first(self, block: ResidualBlock) -> bool:
        """Whether a block adds tensors whose second axis is the channels: those of convolutions and plain vectors."""
        layer = self.get(self.last_weight(block))
        return isinstance(layer, _ConvNd)

    def once(self, path: str) -> None:
        """Raise UnsupportedEditError where the layer at `path` runs more than once in a forward pass."""
        if path in self.map.repeated:
            raise self.unsupported(
                path, "this one module runs at several places of the network; give each place a module of its own"
            )

    def stands_alone(self, layer: Layer) -> bool:
        """Whether a layer is a module that runs once, so that it can be changed in place."""
        return ":" not in layer.path and layer.path not in self.map.repeated

    def sums(self, block: ResidualBlock) -> tuple[ResidualSum, ...]:
        """The modules that add the branches of a block, one for each; operators in forward code become modules.

        Raises:
            UnsupportedEditError: the sum is something else, or its forward code cannot be rewritten.
        """
        try:
            paths = (block.sum,) if block.sum is not None else self._lifted.sums_of(block)
        except LiftError as error:
            raise self.unsupported(
                block.name,
                f"its residual sum is an operator in the forward code and cannot be made a module: "
                f"{str(error).rstrip('.')} (normless.nn.ResidualSum adds as a module)",
            ) from error
        found = tuple(self.get(path) for path in paths)
        assert all(isinstance(module, ResidualSum) for module in found)
        return cast(tuple[ResidualSum, ...], found)

    def adds_plainly(self, block: ResidualBlock) -> bool:
        """Whether a block's sum is skip path plus branch and nothing else."""
        if block.sum is None and not self._lifted.has_lifted(block):
            return True
        return all(total.is_plain for total in self.sums(block))

    def take_out(self, block: ResidualBlock, total: ResidualSum) -> None:
        """Put another sum in the place of a block's only one."""
        path = block.sum if block.sum is not None else self._lifted.sums_of(block)[0]
        self.replace(path, total)

    def sum(self, block: ResidualBlock) -> ResidualSum:
        """The module whose output is a block's sum; of several additions the last."""
        return self.sums(block)[-1]

    def weight_layers(self) -> Iterator[Layer]:
        """Every weight layer that is left, in execution order."""
        return (layer for layer in self.map.layers() if layer.kind == "weight" and self.is_left(layer))
