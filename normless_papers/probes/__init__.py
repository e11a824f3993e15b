"""Measurements for single figures or tables of the papers, each with its prediction."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, [])
