"""What a network's forward takes, as one value."""

from __future__ import annotations

from typing import Any


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments: one tensor, a tuple or a dictionary of them, or None for none."""
    if inputs is None or isinstance(inputs, dict):
        return (), inputs or {}
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
