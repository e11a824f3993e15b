"""Measurements of networks, each with its prediction; names are imported on first use."""

from normless.deprecated import with_moved
from normless.lazy import attach_stub

_current, __dir__, __all__ = attach_stub(__name__, __file__)
__getattr__ = with_moved(__name__, _current)
