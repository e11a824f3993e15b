"""Suspend Python's search for reference cycles while a network of many modules is built or changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Suspend the search for reference cycles, which would visit all modules repeatedly and find nothing to free.

    With 10,000 layers it takes a sixth of the time of building, mapping and converting.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
