"""What edits did to a network: their changes, the layers that they removed and replaced, and what to say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from normless.edits._plan import Change
from normless.errors import UnsupportedEditError
from normless.residual._description import with_article


@dataclass
class Log:
    """What edits did to a network. Changes carry the edit that is being applied, errors the scheme of a person.

    Attributes:
        network: the name of the network's class.
        classes: the names of the classes of its modules before the edits, by path.
        edit: the edit that is being applied.
        scheme: the text of the scheme to which it belongs, if it belongs to one.
        changes: the changes by the edits, in order.
        removed: the paths of the layers that edits removed.
        replaced: the paths at which an edit put another module.
        zeroed: the names of the parameters that edits let start at zero.
        remarks: clauses that a person would want to read, besides the changes.
    """

    network: str
    classes: Mapping[str, str]
    edit: object = None
    scheme: str = ""
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
        what = self.scheme or type(self.edit).__name__
        error = UnsupportedEditError(f"{what} is not possible {self._place(path)}: {reason}.")
        error.scheme = self.scheme
        return error

    def _place(self, path: str) -> str:
        """Say where a layer or block is: `at layer1.0.bn1, a BatchNorm2d`, or in the forward code of a module."""
        if not path:
            return f"in this {self.network}"
        module, is_inside, name = path.partition(":")
        if is_inside:
            return f"at {name} in the forward code of {module or f'this {self.network}'}"
        kind = self.classes.get(path)
        return f"at {path}" if kind is None else f"at {path}, {with_article(kind)}"

    @contextmanager
    def refusing_at(self, path: str, reason: str = "{}") -> Iterator[None]:
        """Add the edit and the module to a ValueError; its message replaces {} in `reason`."""
        try:
            yield
        except ValueError as error:
            raise self.unsupported(path, reason.replace("{}", str(error).rstrip("."))) from error
