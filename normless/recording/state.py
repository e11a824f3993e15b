"""Leave a network and its inputs as they were before a pass, whatever forward code writes."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain
from operator import is_not
from types import BuiltinMethodType, CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normless._internal.state import preserve_random_state

# Types with the method that fills an empty one; a subclass comes before its base.
_CONTAINERS: dict[type, Any] = {
    OrderedDict: OrderedDict.update,
    dict: dict.update,
    list: list.extend,
    set: set.update,
    deque: deque.extend,
    bytearray: bytearray.extend,
}
# Objects of these packages are caches, locks, loggers and the like; forward code keeps no activations there.
_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}
_ATOMS = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type, type(sys)}
# A larger array is data, of which no copy is made.
LARGEST_ARRAY = 2**24


@contextmanager
def untouched(model: nn.Module, *others: Any) -> Iterator[None]:
    """Restore a network, what its attributes and hooks hold, and `others`, such as inputs; the random states too.

    Restored are the attributes and classes of modules, the contents of containers at any depth, the attributes of
    objects such as data classes, the variables of hooks, small arrays, random generators, and the memory, `.grad` and
    `requires_grad` of tensors. The tape restores the values of tensors. Iterators are not restored.
    """
    restoring = [step for value in _reachable([model, *others]) for step in _restoring(value)]
    try:
        with preserve_random_state(model):
            yield
    finally:
        for restore in restoring:
            restore()


@contextmanager
def below_autograd() -> Iterator[None]:
    """Skip autograd, which would decompose operations before the tape sees them.

    `torch.inference_mode` does so too, but its tensors spoil later trainings if forward code keeps them in a cache.
    """
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def _reachable(starts: list[Any]) -> Iterator[Any]:
    """Iterate over the objects that can be reached, each once."""
    seen: dict[int, Any] = {}
    pending = starts
    while pending:
        value = pending.pop()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        pending.extend(_parts(value))


def _parts(value: Any) -> list[Any]:
    """Return what an object holds."""
    if isinstance(value, dict):
        return [*dict.values(value), *(key for key in dict.keys(value) if type(key) not in _ATOMS)]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, CellType):
        with suppress(ValueError):
            return [value.cell_contents]
        return []
    if isinstance(value, FunctionType):
        return list(value.__closure__ or ()) if _package(value) != "torch" else []
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, Tensor):
        return [value.grad] if value.is_leaf else []
    return [own for own in (_attributes(value), *_slots(value).values()) if own is not None]


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the table of attributes of a module, or of an object that may hold activations; None if it has none."""
    kind = type(value)
    is_data = isinstance(value, (nn.Module, SimpleNamespace)) or (
        _package(kind) not in _FOREIGN and not isinstance(value, type)
    )
    if not is_data or not kind.__dictoffset__:
        return None
    # Without code of its class.
    table: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return table


def _slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that its class declares in `__slots__`."""
    return {name: getattr(value, name) for name in _declared(type(value)) if hasattr(value, name)}


@cache
def _declared(kind: type) -> tuple[str, ...]:
    if _package(kind) in _FOREIGN:
        return ()
    declared = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = [name for one in declared for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _restoring(value: Any) -> Iterator[Callable[[], Any]]:
    """Iterate over the steps that restore an object itself, without what it holds."""
    kind = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if kind is not None:
        yield partial(_refill, value, kind, _content(value, kind))
    elif isinstance(value, Tensor):
        yield _restoring_tensor(value)
    elif isinstance(value, CellType):
        with suppress(ValueError):
            yield partial(setattr, value, "cell_contents", value.cell_contents)
    elif isinstance(value, np.ndarray):
        if type(value) is np.ndarray and value.flags.writeable and value.nbytes <= LARGEST_ARRAY:
            yield partial(np.copyto, value, value.copy())
    elif isinstance(value, random.Random):
        yield partial(value.setstate, value.getstate())
    elif isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield partial(value.set_state, value.get_state())
    else:
        # A lazy module changes its class.
        if isinstance(value, nn.Module):
            yield partial(object.__setattr__, value, "__class__", type(value))
        for name, own in _slots(value).items():
            yield partial(object.__setattr__, value, name, own)


def _content(value: Any, kind: Any) -> list[Any]:
    return list(kind.items(value)) if issubclass(kind, dict) else list(kind.__iter__(value))


def _refill(value: Any, kind: Any, content: list[Any]) -> None:
    """Restore the content of a container, unless it is as it was."""
    now, before = _content(value, kind), content
    if issubclass(kind, dict):
        now, before = list(chain.from_iterable(now)), list(chain.from_iterable(content))
    if len(now) != len(before) or any(map(is_not, now, before)):
        kind.clear(value)
        _CONTAINERS[kind](value, content)


def _restoring_tensor(tensor: Tensor) -> Callable[[], None]:
    """Return what restores a tensor's memory, class, `requires_grad` and `.grad`."""
    with torch._C.DisableTorchFunctionSubclass():
        before, kind = tensor.detach(), type(tensor)
        is_dense = tensor.layout is torch.strided and not tensor.is_nested
        requires_grad, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def restore() -> None:
        tensor.__class__ = kind
        with torch._C.DisableTorchFunctionSubclass():
            if is_dense and not tensor.is_set_to(before):
                tensor.data = before
            if tensor.is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if tensor.is_leaf and tensor.grad is not gradient:
                tensor.grad = gradient

    return restore
