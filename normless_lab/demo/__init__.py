"""The depth sweep of `normless demo`: with and without normalization on the embedded digits."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "The demo", "sqlalchemy", "matplotlib")

if TYPE_CHECKING:
    from normless_lab.demo.demo import DemoError as DemoError
    from normless_lab.demo.demo import DemoResult as DemoResult
    from normless_lab.demo.demo import run_demo as run_demo
    from normless_lab.demo.report import format_accuracy as format_accuracy
    from normless_lab.demo.report import format_rate as format_rate
    from normless_lab.demo.settings import DemoSettings as DemoSettings
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
