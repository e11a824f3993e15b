"""Moments of activations, propagated through a network from its weights alone.

One description of a network (`Steps`), one rule for each kind of operation (`RULES`), and three clients: factors that
keep the scale of weights (`gains`), predictions at residual blocks (`block_moments`) and their use in diagnosis.
"""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.signal.factors import Gain as Gain
    from normless.signal.factors import gains as gains
    from normless.signal.from_flow import steps_of_flow as steps_of_flow
    from normless.signal.moments import FUNCTIONS as FUNCTIONS
    from normless.signal.moments import Moments as Moments
    from normless.signal.predictions import BlockMoments as BlockMoments
    from normless.signal.predictions import block_moments as block_moments
    from normless.signal.propagation import RULES as RULES
    from normless.signal.propagation import Propagation as Propagation
    from normless.signal.propagation import rule as rule
    from normless.signal.quadrature import Stream as Stream
    from normless.signal.quadrature import activation_gain as activation_gain
    from normless.signal.quadrature import is_homogeneous as is_homogeneous
    from normless.signal.quadrature import normal_moments as normal_moments
    from normless.signal.steps import Step as Step
    from normless.signal.steps import Steps as Steps
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
