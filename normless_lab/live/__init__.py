"""`normless watch`: the current state of a run or sweep from its files, and the local page that shows it."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "The live page", "sqlalchemy", "matplotlib", "lightning_fabric")

if TYPE_CHECKING:
    from normless_lab.live.run_page import run_view as run_view
    from normless_lab.live.server import LiveServer as LiveServer
    from normless_lab.live.sweep_view import SweepViewer as SweepViewer
    from normless_lab.live.view import View as View
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
