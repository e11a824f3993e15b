"""Moments of activations, propagated through a network from its weights alone.

One table of rules by the names of operations (`RULES`), applied along a network's dataflow (`Propagation`), and three
clients: factors that keep the scale of weights (`gains`), predictions at residual blocks (`block_moments`) and their
use in diagnosis.
"""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.signal.factors import Gain as Gain
    from normless.signal.factors import gains as gains
    from normless.signal.moments import Moments as Moments
    from normless.signal.predictions import BlockMoments as BlockMoments
    from normless.signal.predictions import block_moments as block_moments
    from normless.signal.quadrature import Stream as Stream
    from normless.signal.quadrature import activation_gain as activation_gain
    from normless.signal.quadrature import is_homogeneous as is_homogeneous
    from normless.signal.quadrature import normal_moments as normal_moments
    from normless.signal.rules import RULES as RULES
    from normless.signal.rules import Propagation as Propagation
    from normless.signal.rules import rule as rule
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
