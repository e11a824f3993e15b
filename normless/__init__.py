"""normless: train deep residual networks with and without normalization, and see why one trains.

All names below are public. Each is imported on first use, so that the command line starts without torch.
"""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
