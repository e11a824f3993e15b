"""The fields of a frozen dataclass checked by their annotations, with one sentence for what is wrong."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError


def check_fields(instance: object, error: type[ValueError]) -> None:
    """Validate every field of a dataclass, and replace its value by that of its annotated type.

    Raises:
        error: naming the field, what was expected and what came.
    """
    for name, adapter in _adapters(type(instance)).items():  # type: ignore[arg-type]
        value = getattr(instance, name)
        try:
            object.__setattr__(instance, name, adapter.validate_python(value))
        except ValidationError as failure:
            raise error(_sentence(name, failure)) from failure


@cache
def _adapters(cls: type[Any]) -> dict[str, TypeAdapter[Any]]:
    annotations = get_type_hints(cls, include_extras=True)
    return {field.name: TypeAdapter(annotations[field.name]) for field in fields(cls)}


def _sentence(name: str, failure: ValidationError) -> str:
    """`replicates should be greater than or equal to 1, got 0.`"""
    first = failure.errors()[0]
    place = ".".join([name, *map(str, first["loc"])])
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    expected = first["msg"].replace("tuple", "list").replace("dictionary", "mapping")
    return re.sub(r"^\w+ should", f"{place} should", expected) + f", got {first['input']!r}."
