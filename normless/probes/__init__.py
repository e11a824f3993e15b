"""Measurements on a network, each with its theory beside it; each name is imported from its file on first use."""

import lazy_loader

from normless.deprecated import with_moved

_current, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_moved(__name__, _current)
