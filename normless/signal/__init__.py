"""Moments of activations, propagated through a network from its weights alone.

One table of rules by the names of operations (`RULES`), applied along a network's dataflow (`Propagation`), and three
clients: factors that keep the scale of weights (`gains`), predictions at residual blocks (`block_moments`) and their
use in diagnosis.
"""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, [])
