"""Public names of a package that are imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader

from normless.extras import named_missing


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what `lazy_loader.attach_stub` does; errors of names that lack a package say what installs it."""
    find, names, every = lazy_loader.attach_stub(package, file)

    def found(name: str) -> Any:
        try:
            return find(name)
        except ModuleNotFoundError as error:
            raise named_missing(f"{package}.{name}", error) from error

    return found, names, every
