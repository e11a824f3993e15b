"""Public names of a package that are imported on first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from normless.extras import named_missing


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the ``__init__.py`` that calls this.

    The names are those that the file imports under ``if TYPE_CHECKING:``, for type checkers.
    """
    block = next(line for line in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(line, ast.If))
    homes = {
        alias.asname or alias.name: (str(line.module), alias.name)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        try:
            if module == package:
                return import_module(f"{package}.{original}")
            value = getattr(import_module(module), original)
        except ModuleNotFoundError as error:
            raise named_missing(f"{package}.{name}", error) from error
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(homes), list(homes)
