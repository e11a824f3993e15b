"""Edits: small changes of a network at places that its residual structure defines; a scheme is a tuple of edits.

`EDITS` has all of them by name.
"""

from normless.edits._attention import AddQKNorm as AddQKNorm, SoftCapLogits as SoftCapLogits
from normless.edits._biases import (
    BiasAfterSum as BiasAfterSum,
    ChannelBiases as ChannelBiases,
    ScalarBiases as ScalarBiases,
)
from normless.edits._branches import (
    BranchMultiplier,
    LayerScale,
    RemoveBranches as RemoveBranches,
    RescaleBranches as RescaleBranches,
    ResetBranchFactors as ResetBranchFactors,
    ScaleBranches as ScaleBranches,
    ScaleSums,
)
from normless.edits._deepnorm import DeepNorm, TFixup as TFixup
from normless.edits._edit import EDITS, Edit
from normless.edits._initialization import (
    LSUV as LSUV,
    KeepScale,
    Reinitialize as Reinitialize,
    ZeroBranchEnds as ZeroBranchEnds,
    ZeroClassifier,
    ZeroLastGamma,
)
from normless.edits._modules import add_scalar as add_scalar, sums_of as sums_of
from normless.edits._norm_variants import ReplaceNorms as ReplaceNorms
from normless.edits._normalizer_free import (
    PredictedVariance as PredictedVariance,
    StandardizeConvolutions as StandardizeConvolutions,
    StandardizeWeights as StandardizeWeights,
)
from normless.edits._norms import (
    BranchEndNorms,
    HeadDropout as HeadDropout,
    KeepLayerNorms,
    LayerNormScaling,
    NormOnSkip,
    OnlyFinalNorm,
    OnlyTopNorm,
    PointwiseNorms as PointwiseNorms,
    RemoveNorms,
)
from normless.edits._plan import Change
from normless.edits._surgery import Surgery

__all__ = [
    "EDITS",
    "BranchEndNorms",
    "BranchMultiplier",
    "Change",
    "DeepNorm",
    "Edit",
    "KeepLayerNorms",
    "KeepScale",
    "LayerNormScaling",
    "LayerScale",
    "NormOnSkip",
    "OnlyFinalNorm",
    "OnlyTopNorm",
    "RemoveNorms",
    "ScaleSums",
    "Surgery",
    "ZeroClassifier",
    "ZeroLastGamma",
]
