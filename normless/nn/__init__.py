"""The layers of normless."""

from normless.nn._activation import (
    Pointwise as Pointwise,
    ScaledActivation as ScaledActivation,
    ShiftedActivation as ShiftedActivation,
)
from normless.nn._affine import ScalarAffine as ScalarAffine, scalar_affine as scalar_affine
from normless.nn._batch_norms import (
    AlternatingBatchNorm1d as AlternatingBatchNorm1d,
    AlternatingBatchNorm2d as AlternatingBatchNorm2d,
    GhostBatchNorm1d as GhostBatchNorm1d,
    GhostBatchNorm2d as GhostBatchNorm2d,
    PartialBatchNorm1d as PartialBatchNorm1d,
    PartialBatchNorm2d as PartialBatchNorm2d,
)
from normless.nn._domains import (
    DomainBatchNorm as DomainBatchNorm,
    SplitBatchNorm as SplitBatchNorm,
    using_domain as using_domain,
)
from normless.nn._freezable import FreezableNorm as FreezableNorm, Tokens as Tokens
from normless.nn._frozen import FrozenAffine as FrozenAffine, FrozenBatchNorm as FrozenBatchNorm
from normless.nn._initialization import initialize as initialize
from normless.nn._standardized import (
    ScaledStdConv1d as ScaledStdConv1d,
    ScaledStdConv2d as ScaledStdConv2d,
    ScaledStdConv3d as ScaledStdConv3d,
    ScaledStdLinear as ScaledStdLinear,
)
from normless.nn._sum import ResidualSum as ResidualSum, SkipOnlySum as SkipOnlySum
from normless.nn.kernels import every_kernel as every_kernel
