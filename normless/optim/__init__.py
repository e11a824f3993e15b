"""What optimizers need: parameter groups by role, learning-rate schedules, adaptive gradient clipping."""

from normless.optim.clipping import adaptive_gradient_clipping as adaptive_gradient_clipping
from normless.optim.groups import param_groups as param_groups
