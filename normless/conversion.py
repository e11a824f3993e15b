"""Convert a network by a scheme: a new module with the scheme's edits, the original untouched."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from normless.arguments import forward_arguments
from normless.edits import Change, Surgery
from normless.edits.verify import verify
from normless.errors import AlreadyConvertedError, MissingValuesError
from normless.lifting.calls import never_fuse
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map
from normless.schemes import Scheme, parse_scheme

MARK = "normless_scheme"

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    scheme: str | Scheme,
    *inputs: Any,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> Model:
    """Apply a scheme to a copy of a network and return the copy.

    Args:
        model: the network, in its normalized form; it is left as it is.
        scheme: a `Scheme`, or the text of one, such as `"fixup"` or `"skipinit(alpha=1)"`; see `normless.scheme`.
        inputs, kwargs: example inputs, by position and by name; needed to trace a network that does not state its
            residual structure, and by schemes that calibrate on a batch (`lsuv`).
        residual_map: the network's map where it is known; traced from the example inputs otherwise.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.

    Raises:
        AlreadyConvertedError: the network carries a scheme already; a second one would edit edits.
        UnsupportedEditError: the network offers no place for an edit of the scheme.
        UnresolvedStructureError: its residual structure could not be read.
        ValueError: the scheme's name or arguments are unknown.
    """
    chosen = _applicable(model, scheme)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    found = residual_map or find_residual_map(model, *inputs, **kwargs)
    surgery = _operate(Surgery(deepcopy(model), found, inputs, kwargs), chosen)
    if inputs or kwargs:
        verify(surgery)
    setattr(surgery.model, MARK, chosen.text)
    assert isinstance(surgery.model, type(model))
    return surgery.model


def plan(
    model: nn.Module,
    scheme: str | Scheme,
    *inputs: Any,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> tuple[Change, ...]:
    """What `convert` would change, as printable data, in order; the arguments and errors are those of `convert`.

    It costs no second set of weights: the edits are made to a copy on torch's device `meta`, unless one reads
    weights or, as `lsuv` does, the example inputs.
    """
    chosen = _applicable(model, scheme)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    found = residual_map or find_residual_map(model, *inputs, **kwargs)
    withheld = not any(parameter.is_meta for parameter in model.parameters())
    try:
        unread = _Unread() if inputs or kwargs else ()
        surgery = _operate(Surgery(_without_values(model), found, unread, values_withheld=withheld), chosen)
    except RuntimeError as error:
        # torch names the device where an operation needs the values of a tensor on it.
        if not isinstance(error, MissingValuesError) and "meta" not in str(error).lower():
            raise
        surgery = _operate(Surgery(deepcopy(model), found, inputs, kwargs), chosen)
    return tuple(surgery.changes)


def scheme_of(model: nn.Module) -> str | None:
    """The text of the scheme a network was converted by, or None for one that was not."""
    mark = getattr(model, MARK, None)
    return mark if isinstance(mark, str) else None


def _applicable(model: nn.Module, scheme: str | Scheme) -> Scheme:
    """The scheme, where the network carries none yet."""
    chosen = parse_scheme(scheme)
    earlier = scheme_of(model)
    if earlier is not None:
        raise AlreadyConvertedError(
            f"This {type(model).__name__} was converted by {earlier!r} already; {chosen.text!r} is defined on the "
            "network as it was before. Convert the original, or build it anew."
        )
    return chosen


def _operate(surgery: Surgery, scheme: Scheme) -> Surgery:
    """Carry out the scheme's edits."""
    never_fuse(surgery.model)
    for edit in scheme.edits:
        surgery.run(edit)
    return surgery


class _Unread(tuple[Any, ...]):
    """Replaces the example inputs where weights have no values: an edit that looks at them needs the values.

    torch reads memory that is not there, without an error, where a convolution of `meta` meets real inputs.
    """

    def _refuse(self, *_: object) -> NoReturn:
        raise MissingValuesError("The example inputs are not for weights without values.")

    __len__ = __iter__ = __getitem__ = _refuse


def _without_values(model: nn.Module) -> nn.Module:
    """A copy of the network whose parameters and buffers have shapes and types, but no memory and no values."""
    memo: dict[int, Tensor] = {
        id(tensor): torch.empty_like(tensor, device="meta") for tensor in chain(model.parameters(), model.buffers())
    }
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(memo[id(parameter)], requires_grad=parameter.requires_grad)
    return deepcopy(model, memo)
