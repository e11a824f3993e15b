"""Speed claims, each measured as a ratio to a reference that alternates with it in the same process."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, [])
