"""Restore what modules, containers and other objects hold."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from operator import is_not
from types import BuiltinMethodType, CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Objects of these packages are caches, locks, loggers and the like; forward code keeps no activations there.
_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}
_ATOMS = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type, type(sys)}
_TABLES = frozenset(vars(nn.Module()))
_CONTAINERS = {dict, OrderedDict, list, set, deque, bytearray}
# A larger array is data, of which no copy is made.
LARGEST_ARRAY = 2**24

Restore = Callable[[], Any]
"""Restores one object, without what it holds."""
Visit = Callable[[Any], tuple[Iterable[Any], Restore | None]]
"""Returns what an object holds, and what restores it."""


def attributes_of(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the attributes of modules that are not numbers, texts and the like, nor in torch's own tables."""
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if name not in _TABLES and type(value) not in _ATOMS
    ]


def restorations(pending: list[Any], seen: dict[int, Any] | None = None) -> list[Restore]:
    """Return what restores the objects that can be reached.

    Args:
        pending: the objects to start from; it is emptied.
        seen: by their ids, objects that are left out. The objects that are reached are added.
    """
    seen = {} if seen is None else seen
    empty: list[Any] = []
    restoring: list[Restore] = [partial(_clear, empty)]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        own: type = type(value)
        parts, restore = _visit_of(own)(value)
        if restore is not None:
            restoring.append(restore)
        for part in parts:
            # Most of what modules hold are numbers and empty containers.
            kind: type = type(part)
            if kind in _CONTAINERS and not part:
                empty.append(part)
            elif kind not in _ATOMS:
                pending.append(part)
    return restoring


def _clear(containers: list[Any]) -> None:
    """Empty containers that were empty."""
    for container in containers:
        if container:
            container.clear()


@cache
def _visit_of(kind: type) -> Visit:
    """Return how objects of a type are visited."""
    return next((visit for base, visit in _VISITS.items() if issubclass(kind, base)), _visit_object)


def _visit_dict(value: dict[Any, Any], base: Any = dict) -> tuple[Iterable[Any], Restore]:
    content = dict(base.items(value))

    def restore() -> None:
        now = dict(base.items(value))
        if (
            len(now) != len(content)
            or any(map(is_not, now, content))
            or any(map(is_not, now.values(), content.values()))
        ):
            base.clear(value)
            base.update(value, content)

    return content.values(), restore


def _visit_sequence(value: Any, base: Any, fill: Callable[[Any, list[Any]], Any]) -> tuple[Iterable[Any], Restore]:
    content = list(base.__iter__(value))

    def restore() -> None:
        now = list(base.__iter__(value))
        if len(now) != len(content) or any(map(is_not, now, content)):
            base.clear(value)
            fill(value, content)

    return content, restore


def _visit_tensor(tensor: Tensor) -> tuple[Iterable[Any], Restore]:
    with torch._C.DisableTorchFunctionSubclass():
        is_dense = tensor.layout is torch.strided and not tensor.is_nested
        before, kind, is_leaf = tensor.detach(), type(tensor), tensor.is_leaf
        requires_grad, gradient = tensor.requires_grad, tensor.grad if is_leaf else None

    def restore() -> None:
        if type(tensor) is not kind:
            tensor.__class__ = kind
        with torch._C.DisableTorchFunctionSubclass():
            if is_dense and _memory(tensor) != _memory(before):
                tensor.data = before
            if is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if is_leaf and tensor.grad is not gradient:
                tensor.grad = gradient

    return () if gradient is None else (gradient,), restore


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _visit_module(module: nn.Module) -> tuple[Iterable[Any], Restore]:
    kind = type(module)

    def restore() -> None:
        if type(module) is not kind:
            object.__setattr__(module, "__class__", kind)

    return (object.__getattribute__(module, "__dict__"),), restore


def _visit_object(value: Any) -> tuple[Iterable[Any], Restore | None]:
    kind: type = type(value)
    if isinstance(value, Iterator) and _package(kind) in ("builtins", "itertools"):
        with suppress(TypeError):  # Generators do not show what they hold.
            return value.__reduce__()[1:], None
    if (_package(kind) in _FOREIGN and kind is not SimpleNamespace) or isinstance(value, type) or _observes(kind):
        return (), None
    # Without code of its class.
    table = (object.__getattribute__(value, "__dict__"),) if kind.__dictoffset__ else ()
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}

    def restore() -> None:
        for name, own in slots.items():
            object.__setattr__(value, name, own)

    return (*table, *slots.values()), restore if slots else None


@cache
def _slots(kind: type) -> tuple[str, ...]:
    declared = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = [name for one in declared for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _observes(value: Any) -> bool:
    """Whether a function or class is of this project, apart from its layers: hooks of these note what they see."""
    module = str(getattr(value, "__module__", ""))
    return module.startswith(("normless.", "normless_")) and not module.startswith("normless.nn.")


def _visit_function(function: FunctionType) -> tuple[Iterable[Any], None]:
    return () if _package(function) == "torch" or _observes(function) else function.__closure__ or (), None


def _visit_method(method: MethodType) -> tuple[Iterable[Any], None]:
    return () if _observes(method) else (method.__self__,), None


def _visit_partial(call: partial[Any]) -> tuple[Iterable[Any], None]:
    return () if _observes(call.func) else (call.func, call.args, call.keywords), None


def _visit_cell(cell: CellType) -> tuple[Iterable[Any], Restore | None]:
    try:
        content = cell.cell_contents
    except ValueError:  # It is empty yet.
        return (), None
    return (content,), partial(setattr, cell, "cell_contents", content)


def _visit_array(array: np.ndarray[Any, Any]) -> tuple[Iterable[Any], Restore | None]:
    is_kept = type(array) is np.ndarray and array.flags.writeable and array.nbytes <= LARGEST_ARRAY
    return array.ravel().tolist() if array.dtype == object else (), partial(
        np.copyto, array, array.copy()
    ) if is_kept else None


# By type, a subclass before its base.
_VISITS: dict[type, Visit] = {
    nn.Module: _visit_module,
    Tensor: _visit_tensor,
    OrderedDict: partial(_visit_dict, base=OrderedDict),
    dict: _visit_dict,
    list: partial(_visit_sequence, base=list, fill=list.extend),
    set: partial(_visit_sequence, base=set, fill=set.update),
    deque: partial(_visit_sequence, base=deque, fill=deque.extend),
    bytearray: partial(_visit_sequence, base=bytearray, fill=bytearray.extend),
    tuple: lambda value: (value, None),
    frozenset: lambda value: (value, None),
    FunctionType: _visit_function,
    CellType: _visit_cell,
    MethodType: _visit_method,
    BuiltinMethodType: lambda method: ((method.__self__,), None),
    partial: _visit_partial,
    np.ndarray: _visit_array,
    random.Random: lambda own: ((), partial(own.setstate, own.getstate())),
    torch.Generator: lambda own: ((), partial(own.set_state, own.get_state())),
    np.random.RandomState: lambda own: ((), partial(own.set_state, own.get_state())),
    np.random.Generator: lambda own: ((), partial(setattr, own.bit_generator, "state", own.bit_generator.state)),
}
