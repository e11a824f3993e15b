"""Denormal numbers, on which processors are a hundred times slower than on others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Below float32's smallest normal number, 2⁻¹²⁶.
DENORMAL = 1e-40


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush them to 0 in the body, as most accelerators do; the former setting is restored.

    A signal or gradient that shrinks from block to block, as with sums times √½, is denormal in some fifty blocks of
    a very deep network before it is 0. Without effect where the processor does not support it. A library's
    threads inherit the setting when they start and keep it: enter before the first operator to reach those of
    oneDNN's convolutions.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Whether torch's operators flush them to 0 in this thread."""
    return not torch.full((1,), DENORMAL, dtype=torch.float32).mul(1.0).view(torch.int32).item()
