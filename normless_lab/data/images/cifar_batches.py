"""The pickled batches of CIFAR, read without creating anything but plain data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normless.errors import DataFormatError


# A pickle may call any function by name. Here the few names that an array of bytes needs stand for classes of our
# own, which only store their arguments; every other name is refused.
class _Type:
    """Stands for a NumPy dtype: ``dtype('u1', False, True)`` and its state."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for bytes, the only type that is accepted."""


class _Array:
    """Stands for a NumPy array."""

    array: NDArray[np.uint8] | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, data = state
        if not (isinstance(kind, _Type) and kind.code == "u1" and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1:
    """Stands for ``codecs.encode``, by which Python 3 writes bytes into the older pickle protocols."""

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"text is encoded as {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it gives a function a state")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Latin1(),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Look the name up in the table instead of importing it."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return _NAMES[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain values and arrays of bytes; its keys come out as text."""
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
    # A damaged pickle raises errors of many kinds.
    except Exception as error:
        raise DataFormatError(f"{path} is not a CIFAR batch: {error}.") from error
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value.array
        if isinstance(value, _Array)
        else value
        for key, value in content.items()
    }
