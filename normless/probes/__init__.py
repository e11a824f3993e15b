"""Measurements of networks, each with its prediction; names are imported on first use."""

from typing import Any

from normless.deprecated import with_moved
from normless.lazy import attach_stub

_current, __dir__, __all__ = attach_stub(__name__, __file__)
_moved = with_moved(__name__, _current)


def __getattr__(name: str) -> Any:
    try:
        return _moved(name)
    except AttributeError:
        from normless.probes.former import table_function

        return table_function(name)
