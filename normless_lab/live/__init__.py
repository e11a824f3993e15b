"""`normless watch`: the current state of a run or sweep from its files, and the local page that shows it."""

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "The live page", "sqlalchemy", "matplotlib", "lightning_fabric")

__getattr__, __dir__, __all__ = attach(__name__, __file__)
