from normless.residual.steps import Step as Step
from normless.residual.steps import Steps as Steps

from .factors import Gain as Gain
from .factors import gains as gains
from .moments import FUNCTIONS as FUNCTIONS
from .moments import Moments as Moments
from .predictions import BlockMoments as BlockMoments
from .predictions import block_moments as block_moments
from .predictions import steps_of as steps_of
from .propagation import RULES as RULES
from .propagation import Propagation as Propagation
from .propagation import rule as rule
from .quadrature import Stream as Stream
from .quadrature import activation_gain as activation_gain
from .quadrature import is_homogeneous as is_homogeneous
from .quadrature import normal_moments as normal_moments
