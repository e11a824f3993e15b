"""Optional dependencies: import them, or raise the error that names the extra to install."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from typing import Any

from normless.errors import MissingExtraError as MissingExtraError


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Check that the modules of an extra of ``pyproject.toml`` are installed, without importing them.

    `what`, as ``"Training"``, is the subject of the error's sentence.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise missing_extra(extra, what, *missing)


def missing_extra(extra: str, what: str, *modules: str) -> MissingExtraError:
    """Return the error that names the missing modules and their extra."""
    needs = f"{what} needs {', '.join(modules)}, not installed here: pip install 'normless[{extra}]'."
    return MissingExtraError(needs, name=modules[0])


def named_missing(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error that names the extra, or else the package, that installs a missing module.

    An error that says so already, and that of a module of this package, is returned as it is.
    """
    module = (error.name or "").partition(".")[0]
    if isinstance(error, MissingExtraError) or not module or module.startswith("normless"):
        return error
    package = {"PIL": "pillow"}.get(module, module).replace("_", "-").lower()
    extras: dict[str, set[str]] = defaultdict(set)
    for line in requires("normless") or ():
        name, extra = re.match(r"[\w-]*", line), re.search(r"extra == ['\"]([\w-]+)", line)
        if name and extra and extra[1] not in ("dev", "docs"):
            extras[extra[1]].add(name[0].lower())
    # The metadata repeat what an extra has from another, so that the smallest is the one meant.
    smallest = sorted((len(packages), extra) for extra, packages in extras.items() if package in packages)
    if smallest:
        return missing_extra(smallest[0][1], what, module)
    return MissingExtraError(f"{what} needs {module}, not installed here: pip install {package}.", name=module)


def import_extra(extra: str, what: str, module: str) -> Any:
    """Import a module of an extra; raise errors as `require_extra` does."""
    require_extra(extra, what, module.partition(".")[0])
    return import_module(module)
