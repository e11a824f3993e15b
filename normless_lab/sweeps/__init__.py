"""Experiments of many runs: their definition, the processes that execute them, and their display."""

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "A sweep", "sqlalchemy", "orjson")

__getattr__, __dir__, __all__ = attach(__name__, __file__, ["Kind", "Laboratory", "RateGrid", "Sweep"])
