"""Deep copies of networks, also of networks that store tensors computed from parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normless._internal.restoring import attributes_of, restorations
from normless.errors import NormlessError, UnsupportedEditError
from normless.exclusive import exclusive

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
    # With gradients, the parameters of a copied TorchScript module would be computed from those of the original.
    with torch.no_grad():
        _copy_modules(networks, memo)
        made = deepcopy(value, memo)
    for network in networks if made is not value else ():
        for own, new in zip(network.parameters(), memo[id(network)].parameters(), strict=True):
            if new.is_leaf and new.requires_grad != own.requires_grad:
                new.requires_grad_(own.requires_grad)
    return made


@exclusive
def without_values(model: Model) -> Model:
    """Return a copy of a network with parameters and buffers on the meta device: shapes and types without values."""
    require_whole(model)
    memo: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers(), _computed(model)):
        new = torch.empty_like(tensor, device="meta").detach()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
    _copy_modules([model], memo)
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
    """Return the tensors with an autograd history that modules hold as buffers or attributes, in containers too."""
    modules = {id(module): module for module in model.modules()}
    reached: dict[int, Any] = {**modules}
    restorations(attributes_of(modules.values()), reached)
    for value in chain(reached.values(), model.buffers()):
        if isinstance(value, Tensor) and not value.is_leaf:
            yield value


# Types whose objects are never copied.
_ATOMS = {bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size}


def _copy_modules(networks: Iterable[nn.Module], memo: dict[int, Any]) -> None:
    """Add copies of the modules of networks to the memo of a deep copy.

    `deepcopy` would take most of its time to look at the dozen empty tables and the settings of each module.
    """
    modules = dict.fromkeys(module for network in networks for module in network.modules() if _is_plain(module))
    for module in modules:
        memo[id(module)] = module.__new__(type(module))
    for module in reversed(modules):
        attributes: dict[str, Any] = module.__getstate__()  # type: ignore[no-untyped-call]
        state = {name: _copied_part(value, memo) for name, value in attributes.items()}
        memo[id(module)].__setstate__(state)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is copied by its attributes alone."""
    kind: Any = type(module)
    return "__deepcopy__" not in vars(module) and _has_plain_copies(kind)


@cache
def _has_plain_copies(kind: type) -> bool:
    is_own = any(vars(base).get("__slots__") for base in kind.__mro__) or hasattr(kind, "__deepcopy__")
    names = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    return not is_own and all(getattr(kind, name) is getattr(nn.Module, name) for name in names)


def _copied_part(value: Any, memo: dict[int, Any]) -> Any:
    """Return the deep copy of an attribute of a module, or of a part of one."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind in (tuple, set) and all(type(part) in _ATOMS for part in value):
        return value if kind is tuple else memo.setdefault(id(value), {*value})
    if kind in (dict, OrderedDict):
        made = memo[id(value)] = kind()
        for key, part in value.items():
            made[_copied_part(key, memo)] = _copied_part(part, memo)
        return made
    return deepcopy(value, memo)
