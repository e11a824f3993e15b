"""The budgets at which an artefact is reproduced, and the settings of its function at each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

Budget = Literal["smoke", "small", "cpu", "deep", "gpu", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)

T = TypeVar("T")


@dataclass(frozen=True)
class Aspect:
    """What a setting decides: `data`, `network`, `seeds`, else the `length` of the training; empty if nothing.

    A `named` setting is a data set or a network as text, which is compared by name wherever it stands.
    """

    of: Literal["data", "network", "length", "seeds", ""] = "length"
    named: bool = False


Data = Annotated[T, Aspect("data")]
DataName = Annotated[T, Aspect("data", named=True)]
Network = Annotated[T, Aspect("network")]
NetworkName = Annotated[T, Aspect("network", named=True)]
Seeds = Annotated[T, Aspect("seeds")]
About = Annotated[T, Aspect("")]

# Settings of runs that decide more than the length of the training.
OF_RUNS = MappingProxyType(
    {"model": Aspect("network", named=True), "cutout": Aspect("data"), "vocabulary": Aspect("data")}
)


def aspects_of(annotated: Callable[..., Any]) -> dict[str, Aspect]:
    """Return the aspects of a function's parameters or of a class's fields, as annotated."""
    hints = get_type_hints(annotated, include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: own for name, given in metadata.items() for own in given if isinstance(own, Aspect)}


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
