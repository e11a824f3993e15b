"""``normless report DIR``: one page of all results that ``normless reproduce`` left in a folder."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.process import add_json_flag, answer


def add_arguments(parser: ArgumentParser) -> None:
    """Add the folder and where the page goes."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="folder of results, the --out of normless reproduce"
    )
    parser.add_argument("--page", type=Path | None, default=None, help="the page; DIR/index.html if left out")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Write the page and say where it is."""
    from normless_papers.page import write_page_of

    path = write_page_of(namespace.directory, namespace.page)
    size = path.stat().st_size
    return answer(namespace, {"page": str(path), "bytes": size}, f"wrote {path} ({size / 1e6:.1f} MB)")
