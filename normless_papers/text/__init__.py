"""Runs on text, a plugin of the training loop: classification of sentences, translation, and their data sets.

The names below are imported on first use, so that the command line can show its help without importing torch.
"""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
