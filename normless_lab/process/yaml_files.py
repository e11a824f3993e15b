"""YAML of users, in which aliases can stand for more values than fit in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MOST_VALUES = 100_000


def read_yaml(path: Path | str) -> Any:
    """The value in a YAML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not YAML, or its aliases expand to too many values.
    """
    import yaml

    try:
        return checked_size(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    # A date without such a day is a ValueError, and a key that is a list a TypeError.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML that can be read: {error}") from error


def checked_size(value: Any) -> Any:
    """A value of lists and mappings, unless it has more than 100,000 parts with each alias written out."""
    sizes: dict[int, float] = {}

    def size(node: Any) -> float:
        parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        if id(node) not in sizes:
            # A value that contains itself is infinite.
            sizes[id(node)] = float("inf")
            sizes[id(node)] = 1 + sum(map(size, parts))
        return sizes[id(node)]

    if size(value) > MOST_VALUES:
        raise ValueError(f"Expected YAML of at most {MOST_VALUES:,} values with aliases written out; it has more.")
    return value
