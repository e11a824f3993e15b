"""Theory of the papers: random matrix products, linear networks, homogeneous networks and their gradient bounds."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
