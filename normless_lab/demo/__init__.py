"""The depth sweep of `normless demo`: with and without normalization on the embedded digits."""

from normless.extras import require_extra
from normless.lazy import attach_stub

require_extra("lab", "The demo", "sqlalchemy", "matplotlib")

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
