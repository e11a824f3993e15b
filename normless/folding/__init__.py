"""Fold the batch norms of trained networks into weights, or freeze them, with equal outputs in evaluation."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.folding.frozen_norms import freeze as freeze
    from normless.folding.inference import fuse_for_inference as fuse_for_inference
    from normless.folding.network import FoldedNorm as FoldedNorm
    from normless.folding.network import FoldReport as FoldReport
    from normless.folding.network import fold as fold
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
