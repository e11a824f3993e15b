"""``normless watch``: a local page that shows a run or a sweep while it trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, print_json
from normless.errors import NormlessError
from normless.spec import jsonable
from normless_lab.cli._laboratory import add_state_arguments, laboratory_of
from normless_lab.cli._sweep import OUT, check_metrics, sweep_of

if TYPE_CHECKING:
    from normless_lab.live._view import View


def add_arguments(parser: ArgumentParser) -> None:
    """Add the run or sweep to show, the place of its runs, and the port."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="the folder of a run, a sweep as YAML, or the folder of a sweep's runs",
    )
    add_state_arguments(parser, OUT)
    parser.add_argument(
        "--metrics", type=str, nargs="+", default=["test_accuracy"], help="as of sweep status; the first ranks runs"
    )
    parser.add_argument("--port", type=int, default=0, help="of the page, on 127.0.0.1; a free one if 0")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Serve the page until the command is interrupted; with ``--json`` print its current contents."""
    from normless_lab.live._server import LiveServer

    look = _looking(namespace)
    if namespace.json:
        print_json(jsonable(look().to_dict()))
        return 0
    try:
        server = LiveServer(look, namespace.port)
    except (OSError, OverflowError) as error:
        raise NormlessError(f"The page cannot be served on port {namespace.port}: {error}; name another.") from error
    with server:
        sys.stdout.write(f"{namespace.path} is shown at {server.url} until Ctrl-C\n")
        sys.stdout.flush()
        if namespace.open:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
    return 0


def _looking(namespace: Namespace) -> Callable[[], View]:
    """Return the function that looks at the run or the sweep."""
    from normless_lab.live._views import SweepViewer, run_view
    from normless_lab.sweeps._runs import KINDS, METRICS

    path: Path = namespace.path
    if (path / "config.yaml").is_file():
        return partial(run_view, path)
    sweep = None
    if path.is_file():
        sweep = sweep_of(path, namespace)
    elif any((path / name).exists() for name in ("runs.sqlite", "work")):
        of_kinds = (name for kind in KINDS.values() for name in kind.metrics)
        check_metrics(namespace, list(dict.fromkeys([*METRICS, *of_kinds])))
        namespace.out = path
    else:
        raise NormlessError(
            f"Expected the folder of a run, with its config.yaml, a sweep's YAML file, or the folder of a sweep's "
            f"runs, with runs.sqlite; {path} is {'none of them' if path.exists() else 'not there'}."
        )
    return SweepViewer(laboratory_of(namespace), namespace.metrics, sweep).view
