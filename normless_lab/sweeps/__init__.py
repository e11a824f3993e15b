"""Experiments made of many runs: what to run, the processes that run it, and what is shown of it."""

from normless.extras import require_extra
from normless.lazy import attach_stub

require_extra("lab", "A sweep", "sqlalchemy", "pebble", "orjson")

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
