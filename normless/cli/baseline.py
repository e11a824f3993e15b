"""A file of known findings, so that only new ones fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normless.errors import NormlessError

if TYPE_CHECKING:
    from normless.doctor import Finding

_FORMAT = 1


class BaselineError(NormlessError, ValueError):
    """A file of known findings is missing or is not one."""


@dataclass(frozen=True)
class Baseline:
    """The known findings of a network.

    A finding is known if the file has one of its kind for this network, at one of the same places or, like it, at
    none. Its numbers may differ.

    Attributes:
        file: their file, which may hold those of other networks.
        network: the text of the model, with its scheme if there is one.
        entries: the entries of this network: kind, where and title.
        others: the entries of other networks.
    """

    file: Path
    network: str
    entries: tuple[dict[str, Any], ...]
    others: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, file: Path, network: str, *, may_be_missing: bool = False) -> Baseline:
        """Read a file; raise a BaselineError if it is missing (unless it may be) or is not such a file."""
        if may_be_missing and not file.exists():
            return cls(file, network, (), ())
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise BaselineError(f"There is no file {file}; --write-baseline writes it.") from error
        except ValueError as error:
            raise BaselineError(f"{file} is not the JSON text that --write-baseline writes: {error}.") from error
        entries = values.get("findings") if isinstance(values, dict) and values.get("format") == _FORMAT else None
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            raise BaselineError(f"{file} does not hold findings as --write-baseline writes them; write it again.")
        own = tuple(entry for entry in entries if entry["network"] == network)
        return cls(file, network, own, tuple(entry for entry in entries if entry["network"] != network))

    def known(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return those findings that are known."""
        return tuple(found for found in findings if any(_agree(found, entry) for entry in self.entries))

    def gone(self, findings: Sequence[Finding]) -> int:
        """Return the number of known findings that were not found."""
        return sum(not any(_agree(found, entry) for found in findings) for entry in self.entries)

    def written(self, findings: Sequence[Finding]) -> Baseline:
        """Write the file with these known findings of the network, and return it; those of other networks stay."""
        own = tuple(
            {"network": self.network, "kind": found.kind, "where": list(found.where), "title": found.title}
            for found in findings
        )
        entries = sorted([*self.others, *own], key=lambda entry: (entry["network"], entry["kind"], entry["where"]))
        text = json.dumps({"format": _FORMAT, "findings": entries}, indent=1, ensure_ascii=False)
        from normless.saving import replaced

        with replaced(self.file) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
        return replace(self, entries=own)


def _is_entry(entry: Any) -> bool:
    kinds = {"network": str, "kind": str, "where": list, "title": str}
    return (
        isinstance(entry, dict)
        and entry.keys() == kinds.keys()
        and all(isinstance(entry[name], kind) for name, kind in kinds.items())
        and all(isinstance(name, str) for name in entry["where"])
    )


def _agree(found: Finding, entry: dict[str, Any]) -> bool:
    where = set(entry["where"])
    return found.kind == entry["kind"] and (not where.isdisjoint(found.where) or not (where or found.where))
