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
from ._refit import refit as refit
from ._version import __version__ as __version__
from .affine import (
    fold as fold,
    freeze as freeze,
    fuse_for_inference as fuse_for_inference,
    remove_norms as remove_norms,
)
from .conversion import convert as convert, plan as plan
from .doctor import treat as treat
from .doctor._diagnose import diagnose as diagnose
from .doctor.trained import check_health as check_health
from .doctor.watch._watch import watch as watch
from .errors import NormlessError as NormlessError
from .optim import param_groups as param_groups
from .plotting import plot as plot
from .probes import RideAlong as RideAlong, mixes_examples as mixes_examples, probe as probe
from .residual import ResidualBlock as ResidualBlock, ResidualMap as ResidualMap, residual_map as residual_map
from .saving import load as load, save as save
from .schemes import SCHEMES as SCHEMES, Scheme as Scheme, scheme as scheme
