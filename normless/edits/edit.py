"""What an edit is, and the surgery it is carried out in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from normless.errors import UnsupportedEdit
from normless.nn import ResidualSum, ScalarAffine, ShiftedActivation, scalar_affine
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual.classify import kind_of


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

    Edits are frozen dataclasses, so that a scheme is data: it can be compared, printed and varied.
    """

    @abstractmethod
    def apply(self, surgery: Surgery) -> None:
        """Change `surgery.model` in place and record every change.

        Raises:
            UnsupportedEdit: the network offers no place for the edit; names the module and the reason.
        """


@dataclass
class Surgery:
    """A network under conversion: the modules by path, the map of what it was, the record of what was done.

    Attributes:
        model: the copy that the edits change.
        map: the residual map of the network before the first edit; paths in it stay valid throughout.
        inputs: example inputs, for edits that calibrate on data; may be empty.
        changes: what the edits did, in order.
    """

    model: nn.Module
    map: ResidualMap
    inputs: tuple[Any, ...] = ()
    changes: list[Change] = field(default_factory=list)
    edit: Edit | None = None

    def run(self, edit: Edit) -> None:
        """Apply one edit; what it records and refuses carries its name."""
        self.edit = edit
        edit.apply(self)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`, made by the edit that is being applied."""
        self.changes.append(Change(repr(self.edit), path, what))

    def unsupported(self, path: str, reason: str) -> UnsupportedEdit:
        """The error that says which edit finds no place at which module, and why."""
        where = f"at {path}" if path else f"in this {type(self.model).__name__}"
        return UnsupportedEdit(f"{self.edit!r} is not possible {where}: {reason}.")

    def get(self, path: str) -> nn.Module:
        """The module that is now at `path`."""
        return self.model.get_submodule(path)

    def single(self, path: str) -> nn.Module:
        """The module at `path`, which runs once in a forward pass.

        Raises:
            UnsupportedEdit: it runs more than once, so that a change for one place would change the others.
        """
        if path in self.map.repeated:
            raise self.unsupported(
                path, "this one module runs at several places of the network; give each place a module of its own"
            )
        return self.get(path)

    def replace(self, path: str, module: nn.Module) -> None:
        """Put a module in the place of the one at `path`, in the same mode."""
        module.train(self.get(path).training)
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def is_left(self, layer: Layer) -> bool:
        """Whether the layer still is one; an earlier edit may have removed it."""
        return ":" in layer.path or kind_of(self.get(layer.path)) is not None

    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The residual blocks.

        Raises:
            UnsupportedEdit: the network has none.
        """
        if not self.map.blocks:
            raise self.unsupported("", "it has no residual block")
        return self.map.blocks

    def branch_end(self, block: ResidualBlock) -> Layer | None:
        """The layer whose output the sum now adds as it is, None where something that is no layer comes behind."""
        if not block.ends_in_layer or not block.branch_layers:
            return None
        last = block.branch_layers[-1]
        return last if self.is_left(last) else self.input_of(last)

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
            UnsupportedEdit: scalars cannot be folded into it, or it runs at several places.
        """
        layer = self.single(path)
        try:
            scalar = scalar_affine(layer)
        except UnsupportedEdit as error:
            raise self.unsupported(path, str(error)) from error
        if scalar is not layer:
            self.replace(path, scalar)
        return scalar

    def activation(self, path: str) -> ShiftedActivation:
        """The activation at `path`, made able to take biases around it.

        Raises:
            UnsupportedEdit: it runs at several places, or is a function in the network's forward code.
        """
        if ":" in path:
            raise self.unsupported(path, "the activation is a function in the forward code, not a module")
        module = self.single(path)
        if not isinstance(module, ShiftedActivation):
            module = ShiftedActivation(module)
            self.replace(path, module)
        return module

    def add_scalar(self, path: str, part: str, value: Tensor) -> None:
        """Give the weight layer at `path` a scalar part with this initial value, or share a given parameter.

        Raises:
            UnsupportedEdit: the layer cannot take it, or has it already.
        """
        layer = self.affine(path)
        try:
            layer.add_part(part, value)
        except UnsupportedEdit as error:
            raise self.unsupported(path, str(error)) from error

    def add_shift(self, path: str, part: str) -> None:
        """Give the activation at `path` a zero scalar bias, `input_bias` or `output_bias`.

        Raises:
            UnsupportedEdit: the activation cannot take it, or has it already.
        """
        activation = self.activation(path)
        try:
            activation.add_part(part, next(self.model.parameters()))
        except UnsupportedEdit as error:
            raise self.unsupported(path, str(error)) from error

    def sum(self, block: ResidualBlock) -> ResidualSum:
        """The module that adds skip path and branch of a block.

        Raises:
            UnsupportedEdit: the sum is an operator in the network's own forward code.
        """
        if block.sum is None:
            raise self.unsupported(
                block.name,
                "its residual sum is an operator in the forward code, not a module "
                "(normless.nn.ResidualSum adds as a module)",
            )
        module = self.get(block.sum)
        assert isinstance(module, ResidualSum)
        return module

    def weight_layers(self) -> Iterator[Layer]:
        """Every weight layer that is left, in execution order."""
        return (layer for layer in self.map.layers() if layer.kind == "weight" and self.is_left(layer))
