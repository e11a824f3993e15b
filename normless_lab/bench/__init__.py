"""Speed claims, each a ratio against a rival that runs in turn with it in the same process."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
