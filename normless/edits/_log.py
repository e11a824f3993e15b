"""What edits did to a network: their changes, the layers that they removed and replaced, and what to say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from normless.edits._plan import Change
from normless.errors import UnsupportedEditError


@dataclass
class Log:
    """What edits did to a network. Changes and errors carry the name of the edit that is being applied.

    Attributes:
        network: the name of the network's class.
        edit: the edit that is being applied.
        changes: the changes by the edits, in order.
        removed: the paths of the layers that edits removed.
        replaced: the paths at which an edit put another module.
        zeroed: the names of the parameters that edits let start at zero.
        remarks: clauses that a person would want to read, besides the changes.
    """

    network: str
    edit: object = None
    changes: list[Change] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    zeroed: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`."""
        self.changes.append(Change(repr(self.edit), path, what))

    def unsupported(self, path: str, reason: str) -> UnsupportedEditError:
        """Return the error that the edit is not possible at a module, with the reason."""
        where = f"at {path}" if path else f"in this {self.network}"
        return UnsupportedEditError(f"{self.edit!r} is not possible {where}: {reason}.")

    @contextmanager
    def refusing_at(self, path: str, reason: str = "{}") -> Iterator[None]:
        """Add the edit and the module to a ValueError; its message replaces {} in `reason`."""
        try:
            yield
        except ValueError as error:
            raise self.unsupported(path, reason.replace("{}", str(error).rstrip("."))) from error
