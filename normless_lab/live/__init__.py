"""`normless watch`: what the files of a run or a sweep say now, as a view, and the local page that shows it."""

from normless.extras import require_extra
from normless.lazy import attach_stub

require_extra("lab", "The live page", "sqlalchemy", "matplotlib", "lightning_fabric")

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
