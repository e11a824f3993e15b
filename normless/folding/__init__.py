"""Fold the batch norms of trained networks into weights, or freeze them, with equal outputs in evaluation."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
