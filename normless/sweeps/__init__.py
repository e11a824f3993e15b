"""Experiments made of many runs: what to run, the processes that run it, and what is shown of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
