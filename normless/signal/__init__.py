"""Moments of activations, propagated through a network from its weights alone.

One description of a network (`Steps`), one rule for each kind of operation (`RULES`), and three clients: factors that
keep the scale of weights (`gains`), predictions at residual blocks (`block_moments`) and their use in diagnosis.
"""

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
