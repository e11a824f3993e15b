"""Packages that were renamed; importing a former name works with a ``DeprecationWarning``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FORMER = {
    "normless.decoding": "normless.train",
    "normless.lab": "normless.sweeps",
    "normless.lab.laboratory": "normless.sweeps",
    "normless.lab.sweep": "normless.sweeps",
    "normless.papers": "normless_papers",
    "normless.report": "normless.plots",
    "normless.training": "normless.train",
}


class _FormerPackages:
    """Finder and loader of modules with a former name, whose attributes are those of the package that replaces it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=True) if fullname in FORMER else None

    def create_module(self, spec: ModuleSpec) -> None:
        """The default module."""

    def exec_module(self, module: ModuleType) -> None:
        new = FORMER[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}; import it from there.", DeprecationWarning, stacklevel=2)
        package = import_module(new)
        vars(module)["__getattr__"] = lambda name: getattr(package, name)
        vars(module)["__all__"] = list(getattr(package, "__all__", ()))


def install() -> None:
    """Let the import system find the former names, after all others."""
    sys.meta_path.append(_FormerPackages())
