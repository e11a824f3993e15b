"""What optimizers need: parameter groups by role, learning-rate schedules, adaptive gradient clipping."""

from normless.optim.clipping import adaptive_gradient_clipping as adaptive_gradient_clipping
from normless.optim.groups import param_groups as param_groups
from normless.optim.schedules import rate_multiplier as rate_multiplier
from normless.optim.schedules import set_rate as set_rate
from normless.optim.schedules import step as step
