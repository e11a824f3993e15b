"""The versions of the packages that a run's numbers depend on."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from normless import __version__


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of normless, Python, torch (with its build) and of those of the packages that are installed."""
    import torch  # Its own version, unlike that of its distribution, names the build.

    versions = {"normless": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
