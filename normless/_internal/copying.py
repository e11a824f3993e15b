"""Deep copies of networks, also of networks that store tensors computed from parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normless._internal.exclusive import exclusive
from normless.errors import NormlessError, UnsupportedEditError

Value = TypeVar("Value")
Model = TypeVar("Model", bound=nn.Module)


@exclusive
def copied(value: Value) -> Value:
    """Return a deep copy of a network, or of a tuple of objects that belong together, such as network and optimizer.

    torch does not copy tensors computed from parameters, which `weight_norm`, `spectral_norm` and `prune` store. Here
    they are copied without their history, and the copy computes them anew like the original.
    """
    members = value if isinstance(value, tuple) else (value,)
    networks = [member for member in members if isinstance(member, nn.Module)]
    for network in networks:
        require_whole(network)
    memo: dict[int, Any] = {
        id(tensor): tensor.detach().clone() for tensor in chain.from_iterable(map(_computed, networks))
    }
    # A module has a dozen empty tables of hooks, which take half of the time of deepcopy.
    memo |= {
        id(table): type(table)()
        for network in networks
        for module in network.modules()
        for table in vars(module).values()
        if type(table) in (dict, OrderedDict) and not table
    }
    return deepcopy(value, memo)


@exclusive
def without_values(model: Model) -> Model:
    """Return a copy of a network with parameters and buffers on the meta device: shapes and types without values."""
    require_whole(model)
    tensors = chain(model.buffers(), _computed(model))
    memo: dict[int, Tensor] = {id(tensor): torch.empty_like(tensor, device="meta").detach() for tensor in tensors}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
    return deepcopy(model, memo)


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights of a network are divided among processes (FSDP2, tensor parallelism)."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def require_whole(model: nn.Module, kind: type[NormlessError] = UnsupportedEditError) -> None:
    """Check that the weights of a network are not sharded."""
    if is_sharded(model):
        raise kind(
            f"The weights of this {type(model).__name__} are sharded, and torch neither copies nor exports a sharded "
            "network. Do this before fully_shard, on the network with its whole weights."
        )


def _computed(model: nn.Module) -> Iterator[Tensor]:
    """Return the tensors with an autograd history that modules store as attributes or buffers."""
    for module in model.modules():
        for value in chain(vars(module).values(), module._buffers.values()):
            if isinstance(value, Tensor) and not value.is_leaf:
                yield value
