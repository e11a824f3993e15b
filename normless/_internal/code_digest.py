"""The content of a Python file with the modules that it imports from its folder."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from pkgutil import iter_modules

# In the order in which Python takes them.
_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


def digest_of_code(path: Path) -> str | None:
    """Return the SHA-256 of a file and the modules that it imports from its folder; None if it is not there."""
    if not path.is_file():
        return None
    whole = hashlib.sha256()
    for file in modules_of(path):
        whole.update(f"{'' if file == path else file.relative_to(path.parent).as_posix()}\n".encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def digest_of_importable(path: Path) -> str | None:
    """Return the SHA-256 of `digest_of_code` and of all modules in the folders of the file and of what it imports.

    Any of them may be imported by a name that is computed, or in place of a module elsewhere; None as there.
    """
    code = digest_of_code(path)
    if code is None:
        return None
    whole = hashlib.sha256(code.encode())
    above = {folder for module in modules_of(path) for folder in module.parents}
    for folder in sorted(folder for folder in above if folder.is_relative_to(path.parent)):
        finder = FileFinder(str(folder), *_LOADERS)
        for name in sorted(module.name for module in iter_modules([str(folder)])):
            spec = finder.find_spec(name)
            if spec is not None and spec.origin is not None:
                origin = Path(spec.origin)
                whole.update(f"{origin.relative_to(path.parent).as_posix()}\n".encode())
                whole.update(hashlib.sha256(origin.read_bytes()).digest())
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
