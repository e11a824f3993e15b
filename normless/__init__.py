"""normless: train deep residual networks with and without normalization, and see why one trains.

The public names are listed in ``__init__.pyi``; each is imported from its file on first use, so that
``import normless`` costs next to nothing over importing torch.
"""

from normless.lazy import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["__version__"]
