"""Convert a network by a scheme: a new module with the scheme's edits, the original untouched."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

from torch import nn

from normless.edits import Change
from normless.edits.edit import Surgery
from normless.errors import AlreadyConvertedError
from normless.residual import residual_map
from normless.schemes import Scheme, parse_scheme

MARK = "normless_scheme"

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, scheme: str | Scheme, *inputs: Any) -> Model:
    """Apply a scheme to a copy of a network and return the copy.

    Args:
        model: the network, in its normalized form; it is left as it is.
        scheme: a `Scheme`, or the text of one, such as `"fixup"` or `"skipinit(alpha=1)"`.
        inputs: example inputs; needed to trace a network that does not state its residual structure, and by
            schemes that calibrate on a batch (`lsuv`).

    Raises:
        AlreadyConvertedError: the network carries a scheme already; a second one would edit edits.
        UnsupportedEdit: the network offers no place for an edit of the scheme.
        UnresolvedStructureError: its residual structure could not be read.
        ValueError: the scheme's name or arguments are unknown.
    """
    return _operate(model, scheme, inputs)[0]


def plan(model: nn.Module, scheme: str | Scheme, *inputs: Any) -> tuple[Change, ...]:
    """What `convert` would change, as printable data, in order; the arguments and errors are those of `convert`."""
    return tuple(_operate(model, scheme, inputs)[1])


def scheme_of(model: nn.Module) -> str | None:
    """The text of the scheme a network was converted by, or None for one that was not."""
    mark = getattr(model, MARK, None)
    return mark if isinstance(mark, str) else None


def _operate(model: Model, scheme: str | Scheme, inputs: tuple[Any, ...]) -> tuple[Model, list[Change]]:
    chosen = parse_scheme(scheme) if isinstance(scheme, str) else scheme
    earlier = scheme_of(model)
    if earlier is not None:
        raise AlreadyConvertedError(
            f"This {type(model).__name__} was converted by {earlier!r} already; {chosen.text!r} is defined on the "
            "network as it was before. Convert the original, or build it anew."
        )
    surgery = Surgery(deepcopy(model), residual_map(model, *inputs), inputs)
    for edit in chosen.edits:
        surgery.run(edit)
    setattr(surgery.model, MARK, chosen.text)
    assert isinstance(surgery.model, type(model))
    return surgery.model, surgery.changes
