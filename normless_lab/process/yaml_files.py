"""YAML of users, which may be data of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_yaml(path: Path | str) -> Any:
    """The value in a YAML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not YAML, or has aliases, which can stand for more values than fit in memory.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("expected YAML without aliases (*NAME), which settings do not need")
        return yaml.safe_load(text)
    # A date without such a day is a ValueError, and a key that is a list a TypeError.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML that can be read: {error}") from error
