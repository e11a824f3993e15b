"""What optimizers need: parameter groups by role, adaptive gradient clipping."""

from functools import partial

from normless.deprecated import moved
from normless.optim.clipping import adaptive_gradient_clipping as adaptive_gradient_clipping
from normless.optim.groups import param_groups as param_groups

__getattr__ = partial(moved, __name__)
