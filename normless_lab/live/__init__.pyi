from .run_page import run_view as run_view
from .server import LiveServer as LiveServer
from .sweep_view import SweepViewer as SweepViewer
from .view import View as View
