"""The changes of a network, in order, as printable data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from normless._internal.html import html_table


@dataclass(frozen=True)
class Change:
    """A change of a module: the edit, the module's qualified name, and a description."""

    edit: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.edit}: {self.path or 'the network'}: {self.what}"


class Plan(tuple[Change, ...]):
    """The changes of a conversion, in order."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Plan({len(self)} changes)"

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str, str]] = []
        # Equal changes of several modules share a row.
        for (edit, what), changes in groupby(self, key=lambda change: (change.edit, change.what)):
            paths = [change.path or "the network" for change in changes]
            rows.append((edit, paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]} ({len(paths)})", what))
        return html_table(f"{len(self)} changes", ("edit", "module", "change"), rows)
