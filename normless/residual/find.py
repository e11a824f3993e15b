"""The residual map of a network: stated by the network, or read from its dataflow."""

from __future__ import annotations

from typing import Any

from torch import nn

from normless.arguments import forward_arguments
from normless.errors import UnresolvedStructureError
from normless.residual.blocks import ResidualMap
from normless.residual.declared import StatesStructure, stated_map


def residual_map(
    model: nn.Module, *inputs: Any, strict: bool = False, example_inputs: Any = None, **kwargs: Any
) -> ResidualMap:
    """Find the residual blocks of a network.

    A network that states its structure (those of `normless.models`) is not run. Any other is exported with
    `torch.export`; its weights, buffers, mode and random state stay as they are.

    Args:
        model: any network, in the mode (train or eval) it is to be read in.
        inputs: what its forward takes, positional; needed where the network must be traced. Values do not matter.
        strict: raise where anything is left unresolved, rather than list it in the map's `unresolved`.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.
        kwargs: what its forward takes by name, such as `input_ids`.

    Raises:
        UnresolvedStructureError: the network must be traced and no inputs came, or it cannot be exported; with
            `strict`, something in it cannot be understood.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if isinstance(model, StatesStructure):
        mapped = stated_map(model, model.residual_structure())
    elif inputs or kwargs:
        # torch.export takes a second to import; a network that states its structure must not pay for it.
        from normless.residual.trace import traced_map

        mapped = traced_map(model, *inputs, **kwargs)
    else:
        raise UnresolvedStructureError(
            f"A {type(model).__name__} does not state its residual structure, so it has to be traced: "
            "pass example inputs, as in residual_map(model, torch.randn(2, 3, 224, 224))."
        )
    if strict and mapped.unresolved:
        listed = "; ".join(map(str, mapped.unresolved))
        raise UnresolvedStructureError(
            f"Parts of this {type(model).__name__} cannot be understood: {listed}. Without strict=True they are "
            "listed in the map's `unresolved`, and the rest is mapped."
        )
    return mapped
