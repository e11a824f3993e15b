from ._clipping import adaptive_gradient_clipping as adaptive_gradient_clipping, clip_in_step as clip_in_step
from ._decay import SHORT as SHORT, decays_of as decays_of
from ._groups import ParameterGroups as ParameterGroups, param_groups as param_groups
from ._in_backward import step_in_backward as step_in_backward
from ._named import (
    OPTIMIZERS as OPTIMIZERS,
    defaults_of as defaults_of,
    group_options as group_options,
    make_optimizer as make_optimizer,
    parse_optimizer as parse_optimizer,
)
from ._recomputation import recompute_blocks as recompute_blocks
