"""A call that is refused: what it raises, and what its message has to name."""

from __future__ import annotations

from collections.abc import Callable


class Wrong:
    """A call and its error: the type, and words of the message, such as the module, the number, the way out."""

    def __init__(self, name: str, call: Callable[[], object], error: type[BaseException], *words: str) -> None:
        self.name = name
        self.call = call
        self.error = error
        self.words = words
