"""How much of each artefact a budget carries out, and why so much: `budgets.yaml`, read for the functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

import yaml

Budget = Literal["smoke", "small", "gpu", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)


def typed(function: Callable[..., Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plain data as the keyword arguments of a function, in the types that it is annotated with, else ValueError."""
    # Imported here, as results are read without it.
    from pydantic import TypeAdapter

    kinds = get_type_hints(function)
    values = {name: _immutable(value) for name, value in settings.items()}
    return {name: TypeAdapter(kinds.get(name, Any)).validate_python(value) for name, value in values.items()}


@cache
def budget_table() -> Mapping[str, Mapping[str, Any]]:
    """The file: for each artefact `why`, `remarks` on every result, and its settings at each budget as plain data."""
    text = files("normless_papers").joinpath("budgets.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # Only there to be referenced.
    del table["protocols"], table["efforts"]
    return MappingProxyType(table)


def _immutable(value: Any) -> Any:
    """Lists as tuples, at every depth."""
    if isinstance(value, dict):
        return {name: _immutable(one) for name, one in value.items()}
    return tuple(_immutable(one) for one in value) if isinstance(value, list) else value
