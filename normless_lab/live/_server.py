"""The server of the live page: two addresses, only on the loopback interface."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from normless.spec import jsonable
from normless_lab.live._view import View
from normless_lab.plots._page import template
from normless_lab.plots._palette import css_variables

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
# Seconds between two looks at the files, and the share of the time that they may take.
SECONDS, SHARE = 0.5, 0.25


class LiveServer(ThreadingHTTPServer):
    """Serve the page and, as JSON, the view that `look` returns; port 0 selects a free port.

    Raises an OSError if the port is in use.
    """

    daemon_threads = True

    def __init__(self, look: Callable[[], View], port: int = 0) -> None:
        self._look, self._lock = look, Lock()
        self._last, self._next = b"", 0.0
        self._page = template("live.html.j2").render(colours=css_variables()).encode()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return the type and content of an address; None except for ``/`` and ``/view.json``."""
        if path == "/":
            return "text/html", self._page
        return ("application/json", self._view()) if path == "/view.json" else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def _view(self) -> bytes:
        """Return the view; browsers that ask at about the same time share it."""
        with self._lock:
            start = time.monotonic()
            if start >= self._next:
                self._last = json.dumps(jsonable(self._now()), allow_nan=False).encode()
                end = time.monotonic()
                self._next = end + max(SECONDS, (end - start) / SHARE)
            return self._last

    def _now(self) -> dict[str, object]:
        try:
            return self._look().to_dict()
        # The page shows it, and whether it goes on at the next look.
        except Exception as error:
            return View("normless", "unknown", "", problems=[f"{type(error).__name__}: {error}"]).to_dict()


class _Handler(BaseHTTPRequestHandler):
    """Answer GET requests for this machine's own address; refuse other host names that resolve to it."""

    server: LiveServer
    timeout = 10
    server_version, sys_version = "normless", ""

    def do_GET(self) -> None:
        """Send the page or the view, or an error."""
        if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
            self.send_error(HTTPStatus.FORBIDDEN, "Expected localhost as the host")
        elif (content := self.server.answer(self.path)) is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(*content)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""
