"""What a network's forward takes, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments: one tensor, a tuple or a mapping of them, or None for none."""
    if inputs is None or isinstance(inputs, Mapping):
        return (), dict(inputs or {})
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
