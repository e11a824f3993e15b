from ._factors import Gain as Gain, gains as gains
from ._moments import Moments as Moments
from ._predictions import BlockMoments as BlockMoments, block_moments as block_moments
from ._quadrature import (
    Stream as Stream,
    activation_gain as activation_gain,
    is_homogeneous as is_homogeneous,
    normal_moments as normal_moments,
)
from ._rules import RULES as RULES, Propagation as Propagation, rule as rule
