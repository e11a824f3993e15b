"""The residual structure of a network: its blocks and the layers on each of their paths."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, ["Layer", "Unresolved"])
