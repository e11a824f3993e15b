"""Measurements that one figure or table of the papers needs, each with its prediction."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
