"""Public names of a package that are imported on first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` and ``__all__``, from the ``__init__.pyi`` for type checkers."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: (f"{package}.{line.module}" if line.level else str(line.module), alias.name)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        value = getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *homes}), list(homes)
