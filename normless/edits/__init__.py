"""Edits: small changes of a network at places that its residual structure defines; a scheme is a tuple of edits."""

from normless.edits._attention import AddQKNorm as AddQKNorm, SoftCapLogits as SoftCapLogits
from normless.edits._biases import (
    BiasAfterSum as BiasAfterSum,
    ChannelBiases as ChannelBiases,
    ScalarBiases as ScalarBiases,
)
from normless.edits._branches import (
    BranchMultiplier as BranchMultiplier,
    LayerScale as LayerScale,
    RemoveBranches as RemoveBranches,
    RescaleBranches as RescaleBranches,
    ResetBranchFactors as ResetBranchFactors,
    ScaleBranches as ScaleBranches,
    ScaleSums as ScaleSums,
)
from normless.edits._deepnorm import DeepNorm as DeepNorm, TFixup as TFixup
from normless.edits._edit import EDITS as EDITS, Edit as Edit
from normless.edits._initialization import (
    LSUV as LSUV,
    KeepScale as KeepScale,
    Reinitialize as Reinitialize,
    ZeroBranchEnds as ZeroBranchEnds,
    ZeroClassifier as ZeroClassifier,
    ZeroLastGamma as ZeroLastGamma,
)
from normless.edits._modules import add_scalar as add_scalar, sums_of as sums_of
from normless.edits._norm_variants import ReplaceNorms as ReplaceNorms
from normless.edits._normalizer_free import (
    PredictedVariance as PredictedVariance,
    StandardizeConvolutions as StandardizeConvolutions,
    StandardizeWeights as StandardizeWeights,
)
from normless.edits._norms import (
    BranchEndNorms as BranchEndNorms,
    HeadDropout as HeadDropout,
    KeepLayerNorms as KeepLayerNorms,
    LayerNormScaling as LayerNormScaling,
    NormOnSkip as NormOnSkip,
    OnlyFinalNorm as OnlyFinalNorm,
    OnlyTopNorm as OnlyTopNorm,
    PointwiseNorms as PointwiseNorms,
    RemoveNorms as RemoveNorms,
)
from normless.edits._plan import Change as Change
from normless.edits._surgery import Surgery as Surgery
