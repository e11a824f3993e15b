"""The content of a Python file with the modules that it imports from its folder."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path


def digest_of_code(path: Path) -> str | None:
    """Return the SHA-256 of a file and the modules that it imports from its folder; None if it is not there."""
    if not path.is_file():
        return None
    whole = hashlib.sha256()
    for file in modules_of(path):
        whole.update(f"{'' if file == path else file.relative_to(path.parent).as_posix()}\n".encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def modules_of(path: Path) -> list[Path]:
    """Return a Python file and the modules that it imports from its folder, recursively."""
    files = [path]
    for file in files:
        roots = {path.parent, file.parent}
        names = _imported(file, file.stat().st_mtime_ns)
        places = (root.joinpath(*name.split(".")) for root in roots for name in names)
        modules = (candidate for place in places for candidate in (place.with_suffix(".py"), place / "__init__.py"))
        files += [module for module in dict.fromkeys(modules) if module not in files and module.is_file()]
    return [path, *sorted(files[1:])]


@lru_cache(maxsize=64)
def _imported(file: Path, _time: int) -> list[str]:
    """Return the module names in the import statements of a file; none if the file cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
    return [name for name in names if name]
