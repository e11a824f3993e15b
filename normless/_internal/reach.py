"""The members of a graph that can be reached."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def reachable(start: Iterable[Key], following: Callable[[Key], Iterable[Key]]) -> Iterator[Key]:
    """Yield the members of `start`, those that follow them, and so on, each once."""
    pending, seen = list(start), set[Key]()
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            yield at
            pending += following(at)
