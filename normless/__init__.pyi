from . import (
    affine as affine,
    doctor as doctor,
    edits as edits,
    errors as errors,
    integrations as integrations,
    models as models,
    nn as nn,
    optim as optim,
    probes as probes,
    testing as testing,
)
from ._convert_trained import convert_trained as convert_trained
from ._version import __version__ as __version__
from .affine._folding import fold as fold
from .affine._inference import fuse_for_inference as fuse_for_inference
from .affine._maps import freeze as freeze
from .affine._removal import remove_norms as remove_norms
from .conversion import convert as convert, plan as plan
from .doctor._diagnose import diagnose as diagnose
from .doctor._treatment import treat as treat
from .doctor.trained._diagnosis import diagnose_trained as diagnose_trained
from .doctor.watch._watch import watch as watch
from .errors import (
    NormlessError as NormlessError,
    UnresolvedStructureError as UnresolvedStructureError,
    UnsupportedEditError as UnsupportedEditError,
)
from .optim import adaptive_gradient_clipping as adaptive_gradient_clipping, param_groups as param_groups
from .plotting import plot as plot
from .probes import RideAlong as RideAlong, probe as probe
from .probes.dependence._mixing import mixes_examples as mixes_examples
from .residual import ResidualBlock as ResidualBlock, ResidualMap as ResidualMap, residual_map as residual_map
from .saving._network import load as load, save as save
from .schemes import SCHEMES as SCHEMES, Scheme as Scheme, scheme as scheme
