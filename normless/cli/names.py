"""Names of schemes, models, data sets and probes, checked before torch is imported.

Those of our own tables are in the file ``names.json`` of the package that has the table; ``make names`` writes it,
and a test keeps it true. Those of other distributions are their entry points. What is not a plain name, as
FILE.py:NAME, is left to the table itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from normless.registry import TABLES, Registry
from normless.spec import parse_call, split_source, split_terms

# The tables by the arguments that name their entries.
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
    """Return the names of a table, as a registry that holds no entries."""
    stated = json.loads(files(TABLES.package_of(table)).joinpath("names.json").read_text("utf-8"))[table]
    names = Registry[str](stated["kind"], table)
    for name in stated["names"]:
        names.register(name)(name)
    return names


def check_names(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments, a text or several each, that name what is certainly not registered, by a ValueError."""
    for argument, given in arguments.items():
        if argument in ARGUMENTS and given is not None:
            for text in given if isinstance(given, (list, tuple)) else [given]:
                if name := _plain_name(ARGUMENTS[argument], text):
                    names_of(ARGUMENTS[argument]).require(name)


def _plain_name(table: str, text: Any) -> str:
    """Return the name in a text such as ``fixup(gain=0.1) + ZeroClassifier()``; empty for what is read elsewhere."""
    try:
        if table != "models":
            return parse_call(split_terms(text)[0])[0]
        source, call = split_source(text)
        return parse_call(call)[0] if source == "normless:" else ""
    except (ValueError, AttributeError, TypeError):
        return ""
