"""What optimizers need: parameter groups by role and learning-rate schedules."""

from normless.optim.groups import param_groups as param_groups
