"""Networks saved as a folder of weights and a recipe, and loaded from it."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, [])
