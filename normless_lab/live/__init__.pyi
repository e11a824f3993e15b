from .server import LiveServer as LiveServer
from .view import View as View
from .views import SweepViewer as SweepViewer
from .views import run_view as run_view
