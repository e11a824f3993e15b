"""Optional dependencies: import them, or raise the error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
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


def import_extra(extra: str, what: str, module: str) -> Any:
    """Import a module of an extra; raise errors as `require_extra` does."""
    require_extra(extra, what, module.partition(".")[0])
    return import_module(module)
