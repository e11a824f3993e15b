"""Products of random matrices, and what their condition costs linear networks."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
