"""Measurements that one figure or table of the papers needs, each with its prediction."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
