"""Notes of where the host waits for the simulated card: reads of its values, and copies that block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

CARD_TO_CPU, CPU_TO_CARD = "card to CPU", "CPU to card"

# Operations whose result is on the host, or whose shape depends on values.
READS = {
    "aten::_local_scalar_dense",
    "aten::_linalg_check_errors",
    "aten::_unique",
    "aten::_unique2",
    "aten::argwhere",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::linalg_cholesky",
    "aten::linalg_eigh",
    "aten::masked_select",
    "aten::multinomial",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent / "simulated_card.py"), __file__)


class Wait(NamedTuple):
    """A wait: its direction, the operation, and the line of the caller outside of torch."""

    direction: str
    operation: str
    place: str


_notebooks: list[list[Wait]] = []


@contextmanager
def noted_waits() -> Iterator[list[Wait]]:
    """Collect the waits of the body, of all threads."""
    notes: list[Wait] = []
    _notebooks.append(notes)
    try:
        yield notes
    finally:
        _notebooks.remove(notes)


def note(direction: str, operation: str) -> None:
    """Add a wait, if they are collected."""
    if _notebooks:
        wait = Wait(direction, operation, _place())
        for notes in _notebooks:
            notes.append(wait)


def reads_memory(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host reads values on the card for an operation."""
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"):
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return name in READS


def _place() -> str:
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
