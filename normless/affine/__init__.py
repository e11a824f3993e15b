"""Norms with constant statistics as affine maps: fold them, freeze them, take norms out, fit what replaces them."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.affine.folding import FoldReport as FoldReport
    from normless.affine.folding import Outcome as Outcome
    from normless.affine.folding import fold as fold
    from normless.affine.inference import fuse_for_inference as fuse_for_inference
    from normless.affine.maps import freeze as freeze
    from normless.affine.match_statistics import TrainedReport as TrainedReport
    from normless.affine.removal import Removal as Removal
    from normless.affine.removal import remove_norms as remove_norms
    from normless.affine.schedule import Freezing as Freezing
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
