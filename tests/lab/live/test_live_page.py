"""The live page: what its server refuses, and in a real browser curves that grow, quietly, with texts as texts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pandas as pd
import pytest
import yaml

from normless_lab.live._server import LiveServer
from normless_lab.live._view import Chart, View, line
from normless_lab.live._views import run_view
from normless_lab.plots import Column, Table

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "</script><script>document.title='stolen'</script><b id=evil>&amp;"
NUMBERS = Chart(HOSTILE, HOSTILE, [line(HOSTILE, [1, 2], [0.0, 5.0], "scheme-none")], HOSTILE, log=True, marks=[1.5])
TABLES = [Table(HOSTILE, [Column(HOSTILE)], [[HOSTILE]])]
PAIRS = [(HOSTILE, HOSTILE)]
TEXTS = View(
    HOSTILE, HOSTILE, HOSTILE, charts=[NUMBERS], findings=PAIRS, tables=TABLES, settings=PAIRS, problems=[HOSTILE]
)


@contextmanager
def served(look: Callable[[], View]) -> Iterator[LiveServer]:
    with LiveServer(look) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def write(folder: Path, epochs: int) -> None:
    """A run of so many finished epochs of five."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"epochs": 5, "scheme": "skipinit"}))
    at = range(1, epochs + 1)
    losses, accuracies = [1 / epoch for epoch in at], [epoch / 5 for epoch in at]
    table = pd.DataFrame({"epoch": at, "training_loss": losses, "training_accuracy": accuracies})
    table.to_parquet(folder / "epochs.parquet")


def ask(server: LiveServer, path: str, method: str = "GET", **headers: str) -> Any:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_the_server_answers_to_this_machine_two_addresses_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with served(lambda: run_view(tmp_path)) as server:
        assert server.server_address[0] == "127.0.0.1"
        answer, content = ask(server, "/view.json", Host=f"localhost:{server.server_port}")
        assert (answer.status, json.loads(content)["words"]) == (200, "2 of 5 epochs finished")
        for host in (f"evil.invalid:{server.server_port}", "localhost.evil.invalid", "127.0.0.1.evil", ""):
            answer, content = ask(server, "/view.json", Host=host)
            assert (answer.status, b"epochs" in content) == (403, False)
        for path in ("/config.yaml", "/../config.yaml", "/view.json/..", f"/{tmp_path}/config.yaml", "/<b>"):
            answer, content = ask(server, path)
            assert (answer.status, b"scheme" in content, b"<b>" in content) == (404, False, False)
        assert ask(server, "/view.json", "POST")[0].status == 501
        answer, content = ask(server, "/")
        assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = re.search(r'content="(default-src[^"]*)"', content.decode())
        assert policy is not None
        assert re.fullmatch(
            r"default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
            r"script-src 'sha256-[\w+/=]+'; connect-src 'self'",
            unescape(policy[1]),
        )


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Opens a page; whatever the browser complains of fails the test."""
    contexts, complaints = [], []

    def open_page(url: str, width: int = 1280) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(url) or complaints.append(request.url))
        page.goto(url)
        page.wait_for_selector("#state[data-is]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def test_texts_of_somebody_else_are_texts(opened: Any) -> None:
    with served(lambda: TEXTS) as server:
        page = opened(server.url)
        assert page.title() == f"{HOSTILE} – normless watch"
        assert page.locator("#evil").count() == 0
        assert page.locator("script").count() == 1
        for place in ("h1", "#state", "#words", "#problems", "#findings", "figure h2", "th", "td"):
            assert HOSTILE in page.locator(place).first.inner_text()


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write(tmp_path, 3)
    # A shell starts its background jobs, and so all tests within one, with Ctrl-C ignored.
    heeding = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heeding}; from normless.cli import main; sys.exit(main(['watch', sys.argv[1]]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place = rf"{re.escape(str(tmp_path))} is shown at (http://127\.0\.0\.1:\d+/) until Ctrl-C\n"
            url = re.fullmatch(place, process.stdout.readline())
            assert url is not None
            with urlopen(f"{url[1]}view.json", timeout=100) as answer:
                assert json.load(answer)["done"] == 3
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=100) == ("", "normless: interrupted.\n")
        finally:
            process.kill()
    assert process.returncode == 130
