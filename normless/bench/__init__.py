"""Speed claims, each a ratio against a rival that runs in turn with it in the same process."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
