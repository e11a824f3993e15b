"""The edits: small changes to a network at places its residual structure defines; schemes are tuples of them."""

from normless.edits.biases import BiasAfterSum as BiasAfterSum
from normless.edits.biases import ChannelBiases as ChannelBiases
from normless.edits.biases import ScalarBiases as ScalarBiases
from normless.edits.branches import BranchMultiplier as BranchMultiplier
from normless.edits.branches import LayerScale as LayerScale
from normless.edits.branches import RemoveBranches as RemoveBranches
from normless.edits.branches import RescaleBranches as RescaleBranches
from normless.edits.deepnorm import DeepNorm as DeepNorm
from normless.edits.deepnorm import TFixup as TFixup
from normless.edits.edit import Change as Change
from normless.edits.edit import Edit as Edit
from normless.edits.head import HeadDropout as HeadDropout
from normless.edits.initialization import Reinitialize as Reinitialize
from normless.edits.lsuv import LSUV as LSUV
from normless.edits.norms import KeepLayerNorms as KeepLayerNorms
from normless.edits.norms import NormOnSkip as NormOnSkip
from normless.edits.norms import OnlyFinalNorm as OnlyFinalNorm
from normless.edits.norms import OnlyTopNorm as OnlyTopNorm
from normless.edits.norms import RemoveNorms as RemoveNorms
from normless.edits.replace_norms import ReplaceNorms as ReplaceNorms
from normless.edits.sums import ScaleSums as ScaleSums
from normless.edits.variance import PredictedVariance as PredictedVariance
from normless.edits.weight_standardization import StandardizeWeights as StandardizeWeights
from normless.edits.zeros import ZeroBranchEnds as ZeroBranchEnds
from normless.edits.zeros import ZeroClassifier as ZeroClassifier
from normless.edits.zeros import ZeroLastGamma as ZeroLastGamma
