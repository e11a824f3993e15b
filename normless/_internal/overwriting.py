"""Save the values in memory before operations overwrite them, and restore them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_STAYS = ContextVar("_STAYS", default=False)
P = ParamSpec("P")
T = TypeVar("T")
# These write into their buffers, and their schemas do not say so.
_UPDATES = {"batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}


class OverwrittenMemory:
    """The memory from before a pass that operations of the pass write to, with its values."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}

    def save(self, tensor: Tensor, storage: int) -> bool:
        """Keep the values in the memory of a tensor, whose storage is known by a number, before the first write."""
        if storage in self._saved or tensor.is_meta:
            return False
        memory: Any = tensor.untyped_storage() if storage > 0 else tensor
        if memory.device.type != "meta":
            self._saved[storage] = memory, memory.clone()
        return storage in self._saved

    def restore(self) -> None:
        """Restore the values, and forget them."""
        for memory, values in self._saved.values():
            if isinstance(memory, torch.UntypedStorage) and memory.nbytes() != values.nbytes():
                memory.resize_(values.nbytes())
            with torch.no_grad():
                memory.copy_(values)
        self._saved.clear()


class Overwriting(TorchDispatchMode):
    """Save the values of given tensors before operations of the body overwrite them, and restore them at its end."""

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known, self._memory = set(map(storage_of, tensors)), OverwrittenMemory()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in () if _STAYS.get() else updated(func, args, kwargs):
            if (storage := storage_of(tensor)) in self._known:
                self._memory.save(tensor, storage)
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._memory.restore()


def staying(hook: Callable[P, T]) -> Callable[P, T]:
    """Return a hook whose writes `Overwriting` does not undo, such as one that calibrates a layer."""

    @wraps(hook)
    def stays(*args: P.args, **kwargs: P.kwargs) -> T:
        token = _STAYS.set(True)
        try:
            return hook(*args, **kwargs)
        finally:
            _STAYS.reset(token)

    return stays


def written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Iterate over the tensors that an operation writes to by its schema."""
    for at, name in _writes(func):
        value = args[at] if at < len(args) else kwargs.get(name)
        yield from filter(torch.is_tensor, value if isinstance(value, (list, tuple)) else (value,))


def updated(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Iterate over the tensors that an operation writes to, running statistics included."""
    yield from filter(torch.is_tensor, args[3:5]) if _is_update(func) else written(func, args, kwargs)


def storage_of(tensor: Tensor) -> int:
    """Return a number of the memory of a tensor, below 0 if it has no storage."""
    try:
        memory = tensor.untyped_storage()
        # NumPy and others make further storages of the same memory.
        return int((memory.data_ptr() if memory.device.type != "meta" else 0) or memory._cdata)
    except (NotImplementedError, RuntimeError):  # Sparse tensors have none.
        return -id(tensor)


@cache
def _writes(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operation writes."""
    arguments = enumerate(func._schema.arguments) if isinstance(func, torch._ops.OpOverload) else ()
    infos = ((at, argument.name, argument.alias_info) for at, argument in arguments)
    return tuple((at, name) for at, name, info in infos if info is not None and info.is_write)


@cache
def _is_update(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func._schema.name.partition("::")[2] in _UPDATES
