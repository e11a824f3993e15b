"""``normless list [KIND]``: the entries of the registries, with a description and the distribution of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli._network import as_text, table
from normless.cli._output import add_json_flag, answer
from normless.errors import NormlessError
from normless.registry import TABLES, did_you_mean

if TYPE_CHECKING:
    from normless.registry import Description


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the kind."""
    parser.add_argument("kind", type=str, nargs="?", default=None, help=f"{', '.join(TABLES)}; all by default")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Print a table of every kind, or a sentence if its libraries are not installed."""
    if namespace.kind is not None and namespace.kind not in TABLES:
        meant = did_you_mean(namespace.kind, TABLES)
        raise NormlessError(f"There is no kind {namespace.kind!r}; the kinds are {', '.join(TABLES)}.{meant}")
    kinds = list(TABLES) if namespace.kind is None else [namespace.kind]
    tables: dict[str, Sequence[Description]] = {}
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            tables[kind] = TABLES[kind].describe()
        except ImportError as error:
            missing[kind] = f"{kind} cannot be listed: {str(error).rstrip('.')}."
    facts: dict[str, Any] = {kind: [asdict(entry) for entry in entries] for kind, entries in tables.items()}
    parts = [_text(kind, entries) for kind, entries in tables.items()]
    if missing:
        facts["missing"] = missing
    return answer(namespace, facts, "\n\n".join([*parts, *missing.values()]))


def _text(kind: str, entries: Sequence[Description]) -> str:
    """Format the entries as a table of text in which names are not wrapped, so that they can be copied."""
    made = table(
        (kind, "", "from"), [(entry.name, entry.summary.replace("``", ""), entry.origin) for entry in entries]
    )
    made.columns[0].no_wrap = True
    return as_text(made)
