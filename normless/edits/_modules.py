"""Change modules in place: to layers with scalar parts, to sums from operators, so that they work out of place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from normless.edits._surgery import Surgery
from normless.nn import ResidualSum, ScalarAffine
from normless.nn._activation import ShiftedActivation
from normless.nn._affine import TakesParts, is_attention, takes_scalars, with_input_bias, with_scalars
from normless.residual import Layer, ResidualBlock

Module = TypeVar("Module", bound=nn.Module)


def own_path(surgery: Surgery, layer: Layer) -> str:
    """Return the path of a module that is this layer and no other."""
    if surgery.places.stands_alone(layer):
        return layer.path
    with surgery.log.refusing_at(layer.path):
        return surgery.lifted.module_of(layer)


def operation(surgery: Surgery, layer: Layer) -> nn.Module:
    """Return the module of a layer, which may run elsewhere too; a function becomes a module."""
    return surgery.get(own_path(surgery, layer) if ":" in layer.path else layer.path)


def changed(surgery: Surgery, path: str, change: Callable[[nn.Module], Module]) -> Module:
    """Replace the module at `path`, which runs once, by another form of it, and return that."""
    surgery.places.once(path)
    old = surgery.get(path)
    with surgery.log.refusing_at(path):
        new = change(old)
    if new is not old:
        surgery.replace(path, new)
    return new


def affine(surgery: Surgery, path: str) -> ScalarAffine:
    """Convert the weight layer at `path`, which runs once, to a layer with scalar parts."""
    known = surgery.map.by_path.get(path)
    if ":" in path or (known is not None and not known.called):
        raise surgery.unsupported(path, "forward code uses its weight without calling a module that owns it")
    return changed(surgery, path, with_scalars)


def can_fold(surgery: Surgery, layer: Layer) -> bool:
    """Whether a weight layer is a module that takes scalar parts."""
    return surgery.places.stands_alone(layer) and layer.called and takes_scalars(surgery.get(layer.path))


def add_scalar(surgery: Surgery, path: str, part: str, value: Tensor) -> None:
    """Give the weight layer at `path` a scalar part with this initial value, or share a given parameter.

    The parts are those of the scalar layers of `normless.nn`: `multiplier`, `input_bias`, `output_bias`.

    Raises:
        UnsupportedEditError: the layer runs at several places, is no module, or has the part already.
    """
    parent, _, name = path.rpartition(".")
    # Its attention reads the parameters of a projection and never runs it.
    is_projection = name == "out_proj" and is_attention(surgery.get(parent))
    if is_projection:
        surgery.places.once(path)
        layer: TakesParts = with_input_bias(surgery.get(path))
        setattr(surgery.get(parent), name, layer)
    elif ":" not in path and is_attention(surgery.get(path)):
        layer = changed(surgery, path, with_input_bias)
    else:
        layer = affine(surgery, path)
    with surgery.log.refusing_at(path):
        layer.add_part(part, value)


def add_shift(surgery: Surgery, layer: Layer, part: str) -> None:
    """Give an activation, which may be a function, a zero scalar bias: `input_bias` or `output_bias`."""
    path = own_path(surgery, layer)
    module = surgery.get(path)
    if not isinstance(module, ShiftedActivation):
        module = ShiftedActivation(module)
        surgery.replace(path, module)
    with surgery.log.refusing_at(layer.path):
        module.add_part(part, next(surgery.model.parameters()))


def not_in_place(surgery: Surgery, layer: Layer) -> None:
    """Stop a layer from overwriting its input, which others may read once a norm between them is removed."""
    module: Any = operation(surgery, layer) if layer.in_place else None
    if getattr(module, "inplace", False):
        module.inplace = False


def sum_paths(surgery: Surgery, block: ResidualBlock) -> tuple[str, ...]:
    """Return the paths of the modules that add the branches of a block; operators become modules."""
    fixed = "its residual sum is an operator in the forward code and cannot be made a module: {}"
    with surgery.log.refusing_at(block.name, f"{fixed} (normless.nn.ResidualSum adds as a module)"):
        return (block.sum,) if block.sum is not None else surgery.lifted.sums_of(block)


def sums_of(surgery: Surgery, block: ResidualBlock) -> tuple[ResidualSum, ...]:
    """Return the modules that add the branches of a block, the last one its sum; operators become modules.

    Raises:
        UnsupportedEditError: an operator in forward code cannot be made a module.
    """
    return tuple(cast(ResidualSum, surgery.get(path)) for path in sum_paths(surgery, block))
