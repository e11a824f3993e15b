"""`normless_papers` is built on the public names of `normless`, and nothing in `normless` imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import normless
import normless_papers

CORE, PAPERS = (Path(package.__file__).parent for package in (normless, normless_papers))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The module and the name of every import in a file, the name empty for `import module`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def is_public(module: str, name: str) -> bool:
    """Whether it is a public name of a package, or of a root module, of `normless`."""
    if (module, name) == ("normless", ""):
        return True
    parts = module.split(".")
    spec = find_spec(module)
    package = spec is not None and spec.submodule_search_locations is not None
    if len(parts) > 2 or not (package or len(parts) == 2):
        return False
    exported = getattr(import_module(module), "__all__", None)
    return name == "__version__" or (not name.startswith("_") and (exported is None or name in exported))


@pytest.mark.parametrize("path", sorted(PAPERS.rglob("*.py")), ids=lambda path: str(path.relative_to(PAPERS)))
def test_the_papers_import_public_names_only(path: Path) -> None:
    others = [(module, name) for module, name in imports(path) if module.partition(".")[0] == "normless"]
    assert [f"{module}.{name}" for module, name in others if not is_public(module, name)] == []


def test_the_library_does_not_import_the_papers() -> None:
    importing = [
        path for path in CORE.rglob("*.py") if any(m.partition(".")[0] == "normless_papers" for m, _ in imports(path))
    ]
    assert importing == []


def test_private_names_and_files_are_not_public() -> None:
    assert is_public("normless.probes", "observe")
    assert is_public("normless.errors", "UnknownArtefactError")
    assert not is_public("normless.probes.measure", "probe")
    assert not is_public("normless.probes", "signal_tables")
    assert not is_public("normless._internal.arguments", "_private")
