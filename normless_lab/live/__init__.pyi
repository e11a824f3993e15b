from ._server import LiveServer as LiveServer
from ._view import View as View
from ._views import SweepViewer as SweepViewer, run_view as run_view
