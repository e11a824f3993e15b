"""Labelled images, labelled text and parallel text; an epoch of them is a pure function of the seed and the epoch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
