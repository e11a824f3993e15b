"""Functions around one watcher, replaced by `normless.probe`: the former names measure the same, with a warning."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest

import normless_papers.probes
import normless_papers.theory


@pytest.mark.parametrize("package", [normless_papers.probes, normless_papers.theory])
def test_no_public_name_is_hidden_by_a_module(package: ModuleType) -> None:
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    assert [name for name in package.__all__ if isinstance(getattr(package, name), ModuleType)] == []
