"""Labelled images, labelled text and parallel text; an epoch of them is a pure function of the seed and the epoch."""

from normless.extras import require_extra
from normless.lazy import attach_stub

require_extra("lab", "Reading data sets", "PIL", "pyarrow", "scipy")

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
