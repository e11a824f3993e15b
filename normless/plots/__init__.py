"""Figures and pages from tidy tables, whoever made them."""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
