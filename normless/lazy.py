"""Names of a package that are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lazy_loader

from normless.extras import named_missing


def attach(
    package: str, file: str, public: Sequence[str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what `lazy_loader.attach_stub` does; errors of names that lack a package say what installs it.

    Args:
        package, file: the package, and the file of its `__init__`, beside the stub with its names.
        public: the names of `__all__`, those that a user of the library is promised; all of the stub if None.
    """
    find, _, every = lazy_loader.attach_stub(package, file)
    listed = sorted(every if public is None else public)

    def found(name: str) -> Any:
        try:
            return find(name)
        except ModuleNotFoundError as error:
            raise named_missing(f"{package}.{name}", error) from error

    return found, lambda: listed, listed
