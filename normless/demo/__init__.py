"""The depth sweep of `normless demo`: with and without normalization on the embedded digits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
