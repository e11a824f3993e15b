"""The layers of normless."""

from normless.nn._affine import ScalarAffine
from normless.nn._batch_norms import (
    AlternatingBatchNorm2d as AlternatingBatchNorm2d,
    GhostBatchNorm2d as GhostBatchNorm2d,
    PartialBatchNorm2d as PartialBatchNorm2d,
)
from normless.nn._domains import using_domain
from normless.nn._freezable import FreezableNorm
from normless.nn._frozen import FrozenAffine, FrozenBatchNorm
from normless.nn._initialization import initialize as initialize
from normless.nn._sum import ResidualSum
from normless.nn.kernels import every_kernel as every_kernel

__all__ = ["FreezableNorm", "FrozenAffine", "FrozenBatchNorm", "ResidualSum", "ScalarAffine", "using_domain"]
