"""A simulated card: a torch device of its own, computed on the CPU, that meets CPU tensors only where CUDA does.

`register` adds the device "card" to torch, which cannot be undone. Autograd counts devices at the first backward pass
of a process, so it comes before that. A tensor on the card wraps one on the CPU; `carry_out` runs every operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from generators import DEFAULT, CardModule, PlacedGenerator
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from waits import CARD_TO_CPU, CPU_TO_CARD, note, reads_memory

NAME = "card"

# Where CUDA takes tensors of the CPU whatever their shape: copies, and indices beside values on the card.
COPIES = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
BY_INDEX = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Operations that are not tagged as pointwise, and take a scalar from the CPU all the same.
TAKES_SCALAR = {"aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", *BY_INDEX}

# Torch makes these tensors empty and resizes them, which a wrapper does not follow.
FACTORIES = (
    *("arange", "arange.start", "arange.start_step", "linspace", "logspace", "range", "range.step"),
    *("eye", "eye.m", "randperm", "randperm.generator", "tril_indices", "triu_indices"),
)

# References keep what is registered alive.
_registered: list[torch.library.Library] = []


class CardTensor(Tensor):
    """A tensor on the card, with its values on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: Tensor) -> CardTensor:
        """Wrap a CPU tensor; both share memory."""
        return Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, real: Tensor) -> None:
        self.values_on_cpu = real

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carry_out(func, *args, **(kwargs or {}))

    def __repr__(self) -> str:
        return f"{self.values_on_cpu.detach()!r} on the card"

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if self.dim() == 0 else repr(self)

    @property
    def data(self) -> Tensor:
        """See `torch.Tensor.data`."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, values: CardTensor) -> None:
        Tensor.data.__set__(self, values)
        self.values_on_cpu = values.values_on_cpu

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """See `torch.Tensor.new_tensor`."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of the values, which views share."""
        return self.values_on_cpu.untyped_storage()

    def data_ptr(self) -> int:
        """Where the values are."""
        return self.values_on_cpu.data_ptr()

    def tolist(self) -> Any:
        """See `torch.Tensor.tolist`, which refuses subclasses."""
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only leaves of the graph support the deepcopy protocol.")
        others = {name: value for name, value in vars(self).items() if name not in ("values_on_cpu", "_is_param")}
        copied: Tensor = CardTensor(self.values_on_cpu.detach().clone())
        copied = nn.Parameter(copied) if isinstance(self, nn.Parameter) else copied
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        vars(copied).update(deepcopy(others, memo))
        copied.grad = deepcopy(self.grad, memo)
        return copied

    def __reduce_ex__(self, protocol: int) -> Any:
        if protocol == torch.serialization.DEFAULT_PROTOCOL:
            # By `torch.save`. Files of runs and networks are read to the CPU.
            return self.values_on_cpu.detach().__reduce_ex__(protocol)
        return CardTensor, (self.values_on_cpu.detach(),)


def _without_lists(index: Any) -> Any:
    """An index whose lists are tensors; torch copies them to the device of a tensor by a way of its own."""
    parts = index if isinstance(index, tuple) else (index,)
    made = tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts)
    return made if isinstance(index, tuple) else made[0]


def carry_out(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU; a mix of devices that CUDA refuses is a RuntimeError."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [leaf for leaf in tensors if isinstance(leaf, CardTensor)]
    here = [leaf for leaf in tensors if not isinstance(leaf, CardTensor)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked).type
    if there and here:
        _check_mix(func, args, kwargs, here)
    on_card = asked == NAME or (bool(there) and asked is None)
    _note_wait(func, args, kwargs, there, on_card)
    real_args, real_kwargs = tree_map_only(CardTensor, lambda leaf: leaf.values_on_cpu, (args, kwargs))
    if asked == NAME:
        real_kwargs["device"] = "cpu"
    if on_card and torch.Tag.nondeterministic_seeded in func.tags:
        result = DEFAULT.draw(func, real_args, real_kwargs)
    else:
        result = func(*real_args, **real_kwargs)
    known = {id(leaf.values_on_cpu): leaf for leaf in there}
    if torch.Tag.inplace_view in func.tags:
        _reshape_wrapper(func, args, kwargs)
    if any(leaf.size() != leaf.values_on_cpu.size() for leaf in there):
        raise NotImplementedError(f"{func} resizes a tensor on the simulated card.")

    def placed(leaf: Tensor) -> Tensor:
        return known[id(leaf)] if id(leaf) in known else CardTensor(leaf) if on_card else leaf

    return tree_map_only(Tensor, placed, result)


def _reshape_wrapper(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run an operation as ``t_`` on the sizes and strides of a wrapper."""
    included = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with no_dispatch():
            func(*args, **kwargs)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(included)


def _check_mix(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], here: list[Tensor]) -> None:
    """Raise a RuntimeError unless CUDA, too, computes the operation with these tensors of the CPU."""
    name = func._schema.name
    if name in COPIES:
        return
    target = args[0] if args else None
    if name in BY_INDEX and isinstance(target, CardTensor):
        indices = {id(index) for index in args[1] if index is not None}
        here = [leaf for leaf in here if id(leaf) not in indices]
    written = any(_is_here(value) for value in _written(func, args, kwargs))
    takes_scalar = torch.Tag.pointwise in func.tags or name in TAKES_SCALAR
    scalars = takes_scalar and not written and len(here) <= 1 and all(leaf.dim() == 0 for leaf in here)
    if here and not scalars:
        shapes = ", ".join(str([*leaf.shape]) for leaf in here)
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
            f"cpu: tensors of shape {shapes} are on the CPU."
        )


def _is_here(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and not isinstance(leaf, CardTensor) for leaf in tree_leaves(value))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that an operation writes to."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def _note_wait(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], there: list[CardTensor], on_card: bool
) -> None:
    """Note an operation for which the host waits for the card."""
    name = func._schema.name
    if name in COPIES:
        to_card, source = (on_card, args[0]) if name == "aten::_to_copy" else (not _is_here(args[0]), args[1])
        if to_card and _is_here(source) and not _is_nonblocking(func, args, kwargs):
            note(CPU_TO_CARD, name)
        elif not to_card and there:
            note(CARD_TO_CPU, name)
    elif there and reads_memory(name, args, kwargs):
        note(CARD_TO_CPU, name)
    elif there and name in BY_INDEX and _is_here(args[1]):
        note(CPU_TO_CARD, name)


def _is_nonblocking(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    position = names.index("non_blocking") if "non_blocking" in names else len(args)
    return bool(args[position] if position < len(args) else kwargs.get("non_blocking", False))


def register() -> torch.device:
    """Add the device to torch, once per process, and return it.

    RuntimeError in a process that has made a backward pass before.
    """
    if not _registered:
        _setup_privateuseone_for_python_backend(NAME, CardModule())
        everything = torch.library.Library("_", "IMPL")
        # Tensors on the card are dispatched to `CardTensor`; this is for operations that make the first of them.
        everything.fallback(carry_out, "PrivateUse1")
        aten = torch.library.Library("aten", "IMPL")
        for name in FACTORIES:
            aten.impl(name, functools.partial(carry_out, overload(name)), "PrivateUse1")
        _registered.extend([everything, aten])
        for name in ("tensor", "as_tensor", "asarray"):
            setattr(torch, name, _by_copy(getattr(torch, name)))
        nn.Module._apply = _keeping_ties(nn.Module._apply)
        torch.Generator = PlacedGenerator
        try:
            torch.ones(1, device=NAME, requires_grad=True).sum().backward()
        except RuntimeError as error:
            raise RuntimeError("The simulated card needs a process that has made no backward pass yet.") from error
    return torch.device(NAME, 0)


def overload(name: str) -> Any:
    """The operation of a name as ``arange.start``."""
    packet, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def _keeping_ties(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Let ``module.to(device)`` keep a parameter that two modules share: with wrappers torch makes two of it."""

    @functools.wraps(apply)
    def applied(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        result = apply(self, *args, **kwargs)
        for (first, name), *others in places.values():
            for module, other in others:
                module._parameters[other] = first._parameters[name]
        return result

    return applied


def _by_copy(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes a tensor of Python values: on the CPU, and copies it, as torch's does for CUDA."""

    @functools.wraps(function)
    def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != NAME:
            return function(*args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        value = args[0] if args and isinstance(args[0], CardTensor) else function(*args, **kwargs)
        return value.to(device, kwargs.get("dtype") or value.dtype).requires_grad_(
            requires_grad or value.requires_grad
        )

    return made
