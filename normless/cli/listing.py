"""``normless list [KIND]``: the open tables, with what each entry is and the distribution that it comes from."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.network import as_text, table, terminal_width
from normless.errors import NormlessError
from normless.output import add_json_flag, answer

if TYPE_CHECKING:
    from normless.registry import Description, Registry

# The registries by kind; those of a kind that are in several tables are listed together.
REGISTRIES = MappingProxyType(
    {
        "schemes": ("normless.schemes:SCHEMES",),
        "edits": ("normless.edits:EDITS",),
        "models": ("normless.models:MODELS",),
        "data": ("normless.data:DATA",),
        "probes": ("normless.probes:PROBES",),
        "artefacts": ("normless_papers:ARTEFACTS",),
    }
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the kind."""
    parser.add_argument("kind", type=str, nargs="?", default=None, help=f"{', '.join(REGISTRIES)}; all if left out")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Print a table of every kind; one whose libraries are not installed is a sentence instead."""
    if namespace.kind is not None and namespace.kind not in REGISTRIES:
        raise NormlessError(f"There is no kind {namespace.kind!r}; the kinds are {', '.join(REGISTRIES)}.")
    kinds = REGISTRIES if namespace.kind is None else [namespace.kind]
    listed: dict[str, list[Description]] = {}
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            listed[kind] = [entry for place in REGISTRIES[kind] for entry in _registry(place).describe()]
        except ImportError as error:
            missing[kind] = f"{kind} cannot be listed: {str(error).rstrip('.')}."
    entries: dict[str, Any] = {kind: [asdict(entry) for entry in found] for kind, found in listed.items()}
    width = terminal_width()
    parts = [
        as_text(table((kind, "", "from"), [(one.name, one.summary, one.origin) for one in found]), width)
        for kind, found in listed.items()
    ]
    facts = entries | ({"missing": missing} if missing else {})
    return answer(namespace, facts, "\n\n".join([*parts, *missing.values()]))


def _registry(place: str) -> Registry[object]:
    from normless.registry import Registry

    module, _, name = place.partition(":")
    found = getattr(import_module(module), name, None)
    if not isinstance(found, Registry):
        raise ImportError(f"{module} has no table {name}")
    return found
