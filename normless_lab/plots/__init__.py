"""Figures and pages from tidy tables."""

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Drawing", "matplotlib", "jinja2")

__getattr__, __dir__, __all__ = attach(__name__, __file__, [])
