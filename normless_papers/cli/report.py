"""``normless report``: pages of the results in a folder, or of what a file of runs decides without training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer
from normless.errors import NormlessError


def add_arguments(parser: ArgumentParser) -> None:
    """Add what the page is of, and what is written."""
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=None,
        metavar="DIR",
        help="folder of results, the --out of normless reproduce",
    )
    parser.add_argument(
        "--from",
        type=Path | None,
        default=None,
        dest="source",
        metavar="FILE",
        help="in place of DIR, a file of --runs, whose checks and figures are made anew, without training",
    )
    parser.add_argument(
        "--page",
        type=Path | None,
        default=None,
        help="the front page; DIR/index.html if left out; a page of each paper stands beside it",
    )
    parser.add_argument(
        "--claims", type=Path | None, default=None, help="the headline claims as a Markdown table too"
    )
    parser.add_argument(
        "--runs", type=Path | None, default=None, help="what they rest on as a Parquet file too, for --from"
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Write the page and what else is asked for, and say where it is."""
    from normless_papers.pages.front_page import front_page_of
    from normless_papers.pages.site import write_pages_of
    from normless_papers.results.run_file import rebuilt, write_runs

    directory, source, claims = namespace.directory, namespace.source, namespace.claims
    if (directory is None) == (source is None):
        raise NormlessError("Expected a folder of results, or --from with a file of runs: one of the two.")
    page = namespace.page or (None if source is None else source.with_suffix(".html"))
    written = []
    with nullcontext(directory) if source is None else rebuilt(source) as folder:
        written += write_pages_of(folder, page)
        if claims is not None:
            claims.write_text(front_page_of(folder), encoding="utf-8")
            written.append(claims)
        if namespace.runs is not None:
            write_runs(folder, namespace.runs)
            written.append(namespace.runs)
    sizes = {str(path): path.stat().st_size for path in written}
    text = "\n".join(f"wrote {path} ({size / 1e6:.1f} MB)" for path, size in sizes.items())
    return answer(namespace, {"page": str(written[0]), "bytes": sizes[str(written[0])], "files": sizes}, text)
