"""Edits, their table, and the surgery in which they are carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, cast

from torch import Tensor, nn

from normless.edits.lifted import Lifted
from normless.edits.queries import Queries
from normless.nn import ResidualSum, ScalarAffine, ShiftedActivation, scalar_affine
from normless.nn.attention import TakesInputBias, is_attention, with_input_bias
from normless.registry import Registry
from normless.residual import Layer, ResidualBlock


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
        members: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        arguments = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in members)
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
class Surgery(Queries):
    """A network under conversion: what edits read of it, and how they change it; errors are those of `Queries`.

    Attributes (besides those of `Queries`):
        changes: what the edits did, in order.
        replaced: paths at which an edit put another module.
    """

    changes: list[Change] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lifted = Lifted(self.model, self.map, self.inputs, self.kwargs)

    def run(self, edit: Edit) -> None:
        """Apply one edit; its records and errors carry its name."""
        self.edit = edit
        edit.apply(self)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`, made by the edit that is being applied."""
        self.changes.append(Change(repr(self.edit), path, what))

    def replace(self, path: str, module: nn.Module) -> None:
        """Put a module in the place of the one at `path`, in the same mode."""
        self.replaced.add(path)
        module.train(self.get(path).training)
        parent, _, name = path.rpartition(".")
        setattr(self.get(parent), name, module)

    def remove(self, path: str, rest: nn.Module) -> None:
        """Remove the layer at `path`, leaving `rest` in its place."""
        self.replace(path, rest)
        self.removed.add(path)

    def not_in_place(self, layer: Layer) -> None:
        """Stop a layer from overwriting its input, which another may read once a norm between them is removed."""
        if layer.in_place:
            module = self.get(self.own_path(layer) if ":" in layer.path else layer.path)
            if getattr(module, "inplace", False):
                setattr(module, "inplace", False)  # noqa: B010 - no attribute that nn.Module knows

    def affine(self, path: str) -> ScalarAffine:
        """The weight layer at `path`, which runs once, made able to take scalar parts."""
        found = self.map.by_path.get(path)
        if ":" in path or (found is not None and not found.called):
            raise self.unsupported(path, "forward code uses its weight without calling a module that owns it")
        layer = self.single(path)
        with self.refusing_at(path):
            scalar = scalar_affine(layer)
        if scalar is not layer:
            self.replace(path, scalar)
        return scalar

    def add_scalar(self, path: str, part: str, value: Tensor) -> None:
        """Give the weight layer at `path` a scalar part with this initial value, or share a given parameter."""
        layer = self._attention(path) or self.affine(path)
        with self.refusing_at(path):
            layer.add_part(part, value)

    def _attention(self, path: str) -> TakesInputBias | None:
        """torch's attention at `path`, or the output projection of one, made able to take an input bias, or None.

        torch's code reads the weights; no module runs for each of them.
        """
        if ":" in path:
            return None
        parent, _, name = path.rpartition(".")
        is_projection = name == "out_proj" and is_attention(self.get(parent))
        if not is_projection and not is_attention(self.get(path)):
            return None
        layer = self.single(path)
        biased = with_input_bias(layer)
        if biased is not layer and is_projection:
            # Its attention reads its parameters and never runs it.
            setattr(self.get(parent), name, biased)
        elif biased is not layer:
            self.replace(path, biased)
        return biased

    def add_shift(self, layer: Layer, part: str) -> None:
        """Give an activation, which may be a function, a zero scalar bias: `input_bias` or `output_bias`."""
        path = self.own_path(layer)
        module = self.get(path)
        if not isinstance(module, ShiftedActivation):
            module = ShiftedActivation(module)
            self.replace(path, module)
        with self.refusing_at(layer.path):
            module.add_part(part, next(self.model.parameters()))

    def own_path(self, layer: Layer) -> str:
        """The path of a module that is this layer and no other."""
        if self.stands_alone(layer):
            return layer.path
        with self.refusing_at(layer.path):
            return self._lifted.module_of(layer)

    def remove_function(self, layer: Layer) -> None:
        """Remove a norm that is a function in forward code, and the parameters that only it reads."""
        with self.refusing_at(layer.path, "the normalization is a function in the forward code: {}"):
            self._lifted.drop(layer)
        self.removed.add(layer.path)

    def sums(self, block: ResidualBlock) -> tuple[ResidualSum, ...]:
        """The modules that add the branches of a block, one for each; operators in forward code become modules."""
        with self.refusing_at(
            block.name,
            "its residual sum is an operator in the forward code and cannot be made a module: {} "
            "(normless.nn.ResidualSum adds as a module)",
        ):
            paths = (block.sum,) if block.sum is not None else self._lifted.sums_of(block)
        return tuple(cast(ResidualSum, self.get(path)) for path in paths)

    def sum(self, block: ResidualBlock) -> ResidualSum:
        """The module whose output is a block's sum; of several additions the last."""
        return self.sums(block)[-1]

    def adds_plainly(self, block: ResidualBlock) -> bool:
        """Whether a block's sum is skip path plus branch and nothing else."""
        is_operator = block.sum is None and not any(site in self._lifted.sums for site in block.sites)
        return is_operator or all(total.is_plain for total in self.sums(block))

    def replace_sum(self, block: ResidualBlock, total: ResidualSum) -> None:
        """Put another sum in the place of a block's only one."""
        self.replace(block.sum if block.sum is not None else self._lifted.sums_of(block)[0], total)
