"""Names of schemes, models, data sets and probes, checked before anything else is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normless.registry import TABLES
from normless.spec import parse_call, split_source, split_terms

# The registries by the arguments that name their entries.
ARGUMENTS = {
    "scheme": "schemes",
    "schemes": "schemes",
    "model": "models",
    "networks": "models",
    "data": "data",
    "probes": "probes",
}


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for arguments, each a text or several, that name an entry that is not registered."""
    for argument, given in arguments.items():
        if argument in ARGUMENTS and given is not None:
            for text in given if isinstance(given, (list, tuple)) else [given]:
                if name := _plain_name(ARGUMENTS[argument], text):
                    TABLES[ARGUMENTS[argument]].require(name)


def _plain_name(table: str, text: Any) -> str:
    """Return the name in a text such as ``fixup(gain=0.1) + ZeroClassifier()``; empty if it is not a plain name."""
    try:
        if table != "models":
            return parse_call(split_terms(text)[0])[0]
        source, call = split_source(text)
        return parse_call(call)[0] if source == "normless:" else ""
    except (ValueError, AttributeError, TypeError):
        return ""
