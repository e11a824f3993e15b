"""Names of schemes, models, data sets and probes, checked before torch is imported.

The names of a registry are in the file ``names.json`` of its package; ``make names`` writes it, and a test keeps it
up to date. Other distributions add names by entry points. A text such as FILE.py:NAME is checked by the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from normless.registry import TABLES, Registry
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


@cache
def names_of(table: str) -> Registry[str]:
    """Return a registry of the names of a registry, without its entries."""
    stated = json.loads(files(TABLES.package_of(table)).joinpath("names.json").read_text("utf-8"))[table]
    names = Registry[str](stated["kind"], table)
    for name in stated["names"]:
        names.register(name)(name)
    return names


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for arguments, each a text or several, that name an entry that is not registered."""
    for argument, given in arguments.items():
        if argument in ARGUMENTS and given is not None:
            for text in given if isinstance(given, (list, tuple)) else [given]:
                if name := _plain_name(ARGUMENTS[argument], text):
                    names_of(ARGUMENTS[argument]).require(name)


def _plain_name(table: str, text: Any) -> str:
    """Return the name in a text such as ``fixup(gain=0.1) + ZeroClassifier()``; empty if it is not a plain name."""
    try:
        if table != "models":
            return parse_call(split_terms(text)[0])[0]
        source, call = split_source(text)
        return parse_call(call)[0] if source == "normless:" else ""
    except (ValueError, AttributeError, TypeError):
        return ""
