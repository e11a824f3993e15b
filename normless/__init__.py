"""normless: train deep residual networks with and without normalization, and see why one trains.

The names below are the public API. Each is imported on first use, so that the command line starts without torch.
"""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless import edits as edits
    from normless import errors as errors
    from normless import integrations as integrations
    from normless import models as models
    from normless import nn as nn
    from normless import optim as optim
    from normless import probes as probes
    from normless import testing as testing
    from normless._version import __version__ as __version__
    from normless.affine import FoldReport as FoldReport
    from normless.affine import Removal as Removal
    from normless.affine import TrainedReport as TrainedReport
    from normless.affine import fold as fold
    from normless.affine import freeze as freeze
    from normless.affine import fuse_for_inference as fuse_for_inference
    from normless.affine import remove_norms as remove_norms
    from normless.conversion import convert as convert
    from normless.conversion import plan as plan
    from normless.doctor import Diagnosis as Diagnosis
    from normless.doctor import Finding as Finding
    from normless.doctor import Watch as Watch
    from normless.doctor import WatchWarning as WatchWarning
    from normless.doctor import treat as treat
    from normless.doctor.diagnose import diagnose as diagnose
    from normless.doctor.trained import Health as Health
    from normless.doctor.trained import diagnose_trained as diagnose_trained
    from normless.doctor.watch.watch import watch as watch
    from normless.edits import EDITS as EDITS
    from normless.edits import Change as Change
    from normless.edits import Edit as Edit
    from normless.errors import AlreadyConvertedError as AlreadyConvertedError
    from normless.errors import ChangedCodeWarning as ChangedCodeWarning
    from normless.errors import DataFormatError as DataFormatError
    from normless.errors import DataNotFoundError as DataNotFoundError
    from normless.errors import EvaluationOnlyWarning as EvaluationOnlyWarning
    from normless.errors import FixedArgumentError as FixedArgumentError
    from normless.errors import InputsError as InputsError
    from normless.errors import LiftError as LiftError
    from normless.errors import MissingExtraError as MissingExtraError
    from normless.errors import MissingValuesError as MissingValuesError
    from normless.errors import NormlessError as NormlessError
    from normless.errors import RecipeError as RecipeError
    from normless.errors import UnresolvedStructureError as UnresolvedStructureError
    from normless.errors import UnstableConversionWarning as UnstableConversionWarning
    from normless.errors import UnsupportedEditError as UnsupportedEditError
    from normless.errors import UntrustedCodeError as UntrustedCodeError
    from normless.optim import adaptive_gradient_clipping as adaptive_gradient_clipping
    from normless.optim import clip_in_step as clip_in_step
    from normless.optim import param_groups as param_groups
    from normless.optim import recompute_blocks as recompute_blocks
    from normless.optim import step_in_backward as step_in_backward
    from normless.plotting import plot as plot
    from normless.probes import Measurements as Measurements
    from normless.probes import RideAlong as RideAlong
    from normless.probes import mixes_examples as mixes_examples
    from normless.probes import probe as probe
    from normless.residual import ResidualBlock as ResidualBlock
    from normless.residual import ResidualMap as ResidualMap
    from normless.residual import residual_map as residual_map
    from normless.saving import load as load
    from normless.saving import save as save
    from normless.schemes import SCHEMES as SCHEMES
    from normless.schemes import Scheme as Scheme
    from normless.schemes import scheme as scheme
    from normless.trained import convert_trained as convert_trained
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
