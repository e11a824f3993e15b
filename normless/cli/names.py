"""Names of schemes, models, data sets and probes, checked before torch is imported.

The names are those that this package's own source files register, read from their syntax, and the entry points of
other distributions. What is no plain name, as FILE.py:NAME, is left to the registry itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from normless.cli.zoo_names import check_zoo_name
from normless.registry import Registry
from normless.spec import parse_call, split_source, split_terms

# By the name of the argument: what an entry is called, the table, and the files that register entries.
TABLES = {
    "scheme": (("scheme", "schemes"), "SCHEMES", "schemes.py"),
    "model": (("model", "models"), "MODELS", "models/*.py"),
    "data": (("data set", "data"), "DATA", "data/sources.py"),
    "probes": (("probe", "probes"), "PROBES", "probes/*.py"),
}
ARGUMENTS = {**{name: name for name in TABLES}, "schemes": "scheme", "networks": "model"}


@cache
def names_of(argument: str) -> Registry[str]:
    """The names that an argument may have, in the order of their files, as a registry that holds no entries."""
    (kind, plural), table, files = TABLES[argument]
    names = Registry[str](kind, plural)
    for path in sorted(Path(__file__).parents[1].glob(files)):
        for name in _registered(path, table):
            names.register(name)(name)
    return names


def check_names(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments, a text or several each, that name what is certainly not registered, by a ValueError."""
    for argument, given in arguments.items():
        if argument not in ARGUMENTS or given is None:
            continue
        for text in [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else []:
            source, name = _plain_name(ARGUMENTS[argument], text)
            if source in ("", "normless"):
                names_of(ARGUMENTS[argument]).require(name)
            elif source is not None:
                check_zoo_name(source, name)


def _plain_name(argument: str, text: Any) -> tuple[str | None, str]:
    """Source and name of a text such as ``fixup(gain=0.1) + ZeroClassifier()``; None for what is read elsewhere."""
    try:
        if argument != "model":
            return "", parse_call(split_terms(text)[0])[0]
        source, call = split_source(text)
        return source.removesuffix(":") or None, parse_call(call)[0]
    except (ValueError, AttributeError, TypeError):
        return None, ""


def _registered(path: Path, table: str) -> Iterator[str]:
    """The names under which the top level of a file registers entries in a table.

    It does so by ``TABLE.register("name")``, by ``@TABLE.register()`` above a definition, or in a loop over the
    functions whose own names are meant.
    """
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        for call in ast.walk(statement):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == f"{table}.register"):
                continue
            if isinstance(statement, ast.For):
                yield from (node.id for node in ast.walk(statement.iter) if isinstance(node, ast.Name))
            elif call.args and isinstance(call.args[0], ast.Constant):
                yield str(call.args[0].value)
            elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                yield statement.name
