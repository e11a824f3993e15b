"""Example inputs: the arguments of a network's forward, given one by one or as one value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments: one tensor, a tuple or a mapping of them, or None for none."""
    if inputs is None or isinstance(inputs, Mapping):
        return (), dict(inputs or {})
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def forward_arguments(
    inputs: tuple[Any, ...], kwargs: Mapping[str, Any], example_inputs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a function that takes them one by one or as `example_inputs=`.

    Raises:
        ValueError: they came both ways.
    """
    if example_inputs is None:
        return inputs, dict(kwargs)
    if inputs or kwargs:
        raise ValueError("Expected example inputs one by one or as example_inputs=…, and got both.")
    return arguments_of(example_inputs)
