"""The budgets at which an artefact is reproduced, and the settings of its function at each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_type_hints

Budget = Literal["smoke", "small", "cpu", "deep", "gpu", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)


def typed(function: Callable[..., Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert plain data to the keyword arguments of a function, as annotated; ValueError if they do not fit."""
    # Reading results does not need pydantic.
    from pydantic import TypeAdapter

    kinds = get_type_hints(function)
    return {
        name: TypeAdapter(kinds.get(name, Any)).validate_python(_immutable(value)) for name, value in settings.items()
    }


def _immutable(value: Any) -> Any:
    """Convert lists to tuples, at every depth."""
    if isinstance(value, dict):
        return {name: _immutable(entry) for name, entry in value.items()}
    return tuple(map(_immutable, value)) if isinstance(value, list) else value
