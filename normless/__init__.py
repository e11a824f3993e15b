"""normless: train deep residual networks with and without normalization, and see why one trains.

The public surface is the names below; each is imported from its file on first use, so that
``import normless`` costs next to nothing over importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normless.lazy import lazy_names

if TYPE_CHECKING:
    from normless.conversion import convert as convert
    from normless.conversion import plan as plan
    from normless.diagnosis import Diagnosis as Diagnosis
    from normless.diagnosis import Finding as Finding
    from normless.diagnosis import diagnose as diagnose
    from normless.diagnosis import treat as treat
    from normless.edits import Change as Change
    from normless.edits import Edit as Edit
    from normless.errors import AlreadyConvertedError as AlreadyConvertedError
    from normless.errors import FixedArgumentError as FixedArgumentError
    from normless.errors import RecipeError as RecipeError
    from normless.errors import UnresolvedStructureError as UnresolvedStructureError
    from normless.errors import UnsupportedEdit as UnsupportedEdit
    from normless.folding import FoldReport as FoldReport
    from normless.folding import fold as fold
    from normless.folding import freeze as freeze
    from normless.optim import adaptive_gradient_clipping as adaptive_gradient_clipping
    from normless.optim import param_groups as param_groups
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
    from normless.schemes import parse_scheme as parse_scheme

__version__ = "0.1.0"

_HOME = {
    "convert": "normless.conversion",
    "plan": "normless.conversion",
    "Diagnosis": "normless.diagnosis",
    "Finding": "normless.diagnosis",
    "diagnose": "normless.diagnosis",
    "treat": "normless.diagnosis",
    "Change": "normless.edits",
    "Edit": "normless.edits",
    "AlreadyConvertedError": "normless.errors",
    "FixedArgumentError": "normless.errors",
    "RecipeError": "normless.errors",
    "UnresolvedStructureError": "normless.errors",
    "UnsupportedEdit": "normless.errors",
    "FoldReport": "normless.folding",
    "fold": "normless.folding",
    "freeze": "normless.folding",
    "adaptive_gradient_clipping": "normless.optim",
    "param_groups": "normless.optim",
    "Measurements": "normless.probes",
    "RideAlong": "normless.probes",
    "mixes_examples": "normless.probes",
    "probe": "normless.probes",
    "ResidualBlock": "normless.residual",
    "ResidualMap": "normless.residual",
    "residual_map": "normless.residual",
    "load": "normless.saving",
    "save": "normless.saving",
    "SCHEMES": "normless.schemes",
    "Scheme": "normless.schemes",
    "parse_scheme": "normless.schemes",
}

__all__ = ["__version__", *_HOME]


__getattr__, __dir__ = lazy_names(__name__, _HOME)
