"""Measurements that one figure or table of the papers needs, each with its prediction."""

from normless.deprecated import with_moved
from normless.lazy import attach_stub

_current, __dir__, __all__ = attach_stub(__name__, __file__)
__getattr__ = with_moved(__name__, _current)
