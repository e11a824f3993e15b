"""Integrations with other libraries, each in a module that imports its library; names are loaded on first use."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
