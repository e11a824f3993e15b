"""The layers of normless."""

from normless.nn.activation import Pointwise as Pointwise
from normless.nn.activation import ScaledActivation as ScaledActivation
from normless.nn.activation import ShiftedActivation as ShiftedActivation
from normless.nn.affine import ScalarAffine as ScalarAffine
from normless.nn.affine import scalar_affine as scalar_affine
from normless.nn.batch_norms import AlternatingBatchNorm1d as AlternatingBatchNorm1d
from normless.nn.batch_norms import AlternatingBatchNorm2d as AlternatingBatchNorm2d
from normless.nn.batch_norms import GhostBatchNorm1d as GhostBatchNorm1d
from normless.nn.batch_norms import GhostBatchNorm2d as GhostBatchNorm2d
from normless.nn.batch_norms import PartialBatchNorm1d as PartialBatchNorm1d
from normless.nn.batch_norms import PartialBatchNorm2d as PartialBatchNorm2d
from normless.nn.domains import DomainBatchNorm as DomainBatchNorm
from normless.nn.domains import SplitBatchNorm as SplitBatchNorm
from normless.nn.domains import using_domain as using_domain
from normless.nn.freezable import FreezableNorm as FreezableNorm
from normless.nn.freezable import Tokens as Tokens
from normless.nn.frozen import FrozenAffine as FrozenAffine
from normless.nn.frozen import FrozenBatchNorm as FrozenBatchNorm
from normless.nn.initialization import initialize as initialize
from normless.nn.on_cuda import every_kernel as every_kernel
from normless.nn.standardized import ScaledStdConv1d as ScaledStdConv1d
from normless.nn.standardized import ScaledStdConv2d as ScaledStdConv2d
from normless.nn.standardized import ScaledStdConv3d as ScaledStdConv3d
from normless.nn.standardized import ScaledStdLinear as ScaledStdLinear
from normless.nn.sum import ResidualSum as ResidualSum
from normless.nn.sum import SkipOnlySum as SkipOnlySum
