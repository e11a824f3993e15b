"""YAML of others, which must not need more memory or calls than its length suggests."""

from __future__ import annotations

# Settings have fewer; the C loader of PyYAML ends the process at some ten thousand.
_LEVELS = 50


def check_plain(text: str) -> None:
    """Check that YAML has few levels, no null bytes, and no aliases, which can stand for more than fits in memory.

    Raises:
        ValueError: it has many levels, null bytes or aliases.
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("expected YAML without aliases (*NAME), which settings do not need")
        if isinstance(event, yaml.ScalarEvent) and "\0" in event.value:
            raise ValueError(f"expected texts without null bytes, got {event.value!r}")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _LEVELS:
            raise ValueError(f"expected YAML of at most {_LEVELS} levels of lists and mappings")
