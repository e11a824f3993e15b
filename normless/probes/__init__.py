"""Measurements of networks, each with its prediction; names are imported on first use."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
