"""The files ``names.json`` of our packages: the names in their tables; ``make names`` writes them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from normless.cli import ARGUMENTS
from normless.registry import TABLES


def names_of_tables() -> dict[Path, dict[str, dict[str, Any]]]:
    """What each file should hold: by table the kind of its entries and the names that our own code registers."""
    stated: dict[Path, dict[str, dict[str, Any]]] = {}
    for table in sorted(set(ARGUMENTS.values())):
        registry, package = TABLES[table], TABLES.package_of(table)
        # Tests register entries of their own.
        own = [name for name, entry in registry._own.items() if entry.__module__.partition(".")[0] == package]
        points = [name for name in own if name not in registry._points]
        path = Path(str(files(package))) / "names.json"
        stated.setdefault(path, {})[table] = {"kind": registry.kind, "names": points}
    return stated


if __name__ == "__main__":
    for path, tables in names_of_tables().items():
        path.write_text(json.dumps(tables, indent=2) + "\n", encoding="utf-8")
