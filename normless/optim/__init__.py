"""Tools for optimizers: by name, parameter groups by role, gradient clipping, steps during the backward pass."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.optim.clipping import adaptive_gradient_clipping as adaptive_gradient_clipping
    from normless.optim.clipping import clip_in_step as clip_in_step
    from normless.optim.decay import SHORT as SHORT
    from normless.optim.decay import decays_of as decays_of
    from normless.optim.groups import ParameterGroups as ParameterGroups
    from normless.optim.groups import param_groups as param_groups
    from normless.optim.in_backward import step_in_backward as step_in_backward
    from normless.optim.named import OPTIMIZERS as OPTIMIZERS
    from normless.optim.named import defaults_of as defaults_of
    from normless.optim.named import group_options as group_options
    from normless.optim.named import make_optimizer as make_optimizer
    from normless.optim.named import parse_optimizer as parse_optimizer
    from normless.optim.recomputation import recompute_blocks as recompute_blocks
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
