"""The versions of what a run's numbers depend on."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from normless import __version__


def versions_of(*packages: str) -> dict[str, str]:
    """Of normless, Python and torch, whose says how it was built too, and of those of the packages that are there."""
    found = {"normless": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
