"""Files that are either as they were or complete, whenever the process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends without an error."""
    part = path.with_name(f"{path.name}.part")
    yield part
    part.replace(path)
