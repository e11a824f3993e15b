"""The optional dependencies: what each extra brings, and the error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from normless.errors import MissingExtraError as MissingExtraError


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Check that the modules of an extra are installed, without importing them.

    Args:
        extra: of ``pyproject.toml``: ``"train"``.
        what: the subject of the sentence, ``"Training"``.
        modules: names of importable modules.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"{what} needs {', '.join(missing)}, not installed here: pip install 'normless[{extra}]'.",
            name=missing[0],
        )


def import_extra(extra: str, what: str, module: str) -> Any:
    """The module of an extra, imported; errors as in `require_extra`."""
    require_extra(extra, what, module.partition(".")[0])
    return import_module(module)
