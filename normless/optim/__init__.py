"""What optimizers need: parameter groups by role, adaptive gradient clipping."""

from normless.deprecated import with_moved
from normless.optim.clipping import adaptive_gradient_clipping as adaptive_gradient_clipping
from normless.optim.groups import param_groups as param_groups

__getattr__ = with_moved(__name__)
