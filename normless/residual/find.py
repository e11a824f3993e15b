"""The residual map of a network: as it states it, or as its dataflow shows it."""

from __future__ import annotations

from typing import Any

from torch import nn

from normless.errors import UnresolvedStructureError
from normless.residual.blocks import ResidualMap
from normless.residual.stated import StatesStructure, stated_map


def residual_map(model: nn.Module, *inputs: Any, trace: bool = False) -> ResidualMap:
    """Find the residual blocks of a network.

    A network that states its structure (those of `normless.models`) is not run. Any other is exported with
    `torch.export` on `inputs`, which must be what its forward takes; weights, buffers, mode and random state
    stay as they are.

    Args:
        model: any network; `inputs`: example inputs, needed where the network must be traced.
        trace: trace even a network that states its structure.

    Raises:
        UnresolvedStructureError: the network must be traced and no inputs came, or it cannot be exported.
    """
    if isinstance(model, StatesStructure) and not trace:
        return stated_map(model, model.residual_structure())
    if not inputs:
        raise UnresolvedStructureError(
            f"A {type(model).__name__} does not state its residual structure, so it has to be traced: "
            "pass example inputs, as in residual_map(model, torch.randn(2, 3, 224, 224))."
        )
    # torch.export takes a second to import; a network that states its structure must not pay for it.
    from normless.residual.trace import traced_map

    return traced_map(model, inputs)
