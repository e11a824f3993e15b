"""What labelled and parallel text have in common: parts of sentences, subsets, a checksum, a line of provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self


class TextSets:
    """A text in parts, each a sequence of sentences or pairs with a `size` and a method `first`; frozen dataclasses.

    Attributes:
        kind: what the text is, in words.
        parts: names of the fields with sentences.
        unit: what their sizes count.
        name: the name it is loaded by.
        origin: where the text came from, in words.
    """

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    unit: ClassVar[str]

    name: str
    origin: str

    def _part(self, name: str) -> Any:
        return getattr(self, name)

    def _title(self) -> str:
        """The name, with what distinguishes versions of the text."""
        return self.name

    def _details(self) -> str:
        """What follows the sizes in the line of provenance."""
        return ""

    def _lines(self) -> Iterator[str]:
        """The content, line by line."""
        raise NotImplementedError

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, origin, sizes and checksum."""
        sizes = " / ".join(f"{self._part(name).size} {name}" for name in self.parts)
        return f"{self._title()}: {self.origin}; {sizes} {self.unit}{self._details()}; sha256 {self.checksum[:12]}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the content in hexadecimal."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    def subset(self, **sizes: int | None) -> Self:
        """The same text with the first sentences of some parts only; a size of None keeps the whole part."""
        chosen = {name: size for name, size in sizes.items() if size is not None}
        for name, size in chosen.items():
            whole = self._part(name).size
            if not 1 <= size <= whole:
                raise ValueError(f"A subset of {self.name} has 1 to {whole} {name} {self.unit}, not {size}.")
        described = [f"the first {size} of {self._part(name).size} {name}" for name, size in chosen.items()]
        origin = f"{self.origin}, {' and '.join(described)}" if described else self.origin
        same: Any = self
        smaller: Self = replace(
            same, origin=origin, **{name: self._part(name).first(size) for name, size in chosen.items()}
        )
        return smaller
