"""The residual structure of a network: which blocks it has and which layers each path of them holds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
