"""Tools for optimizers: by name, parameter groups by role, gradient clipping, steps during the backward pass."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
