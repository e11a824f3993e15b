"""``normless report``: pages of the results in a folder, or of a file of runs without training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer
from normless.errors import NormlessError


def add_arguments(parser: ArgumentParser) -> None:
    """Add the source of the pages and the files to write."""
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
        help="instead of DIR, a file of --runs; its checks and figures are made again without training",
    )
    parser.add_argument(
        "--page",
        type=Path | None,
        default=None,
        help="the front page, by default DIR/index.html; a page of each paper is written beside it",
    )
    parser.add_argument(
        "--claims", type=Path | None, default=None, help="also write the headline claims as a Markdown table"
    )
    parser.add_argument(
        "--silent", type=Path | None, default=None, help="also write where the papers are wrong or silent as Markdown"
    )
    parser.add_argument(
        "--runs", type=Path | None, default=None, help="also write their evidence as a Parquet file for --from"
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Write the pages and the other files, and list them."""
    from normless_papers.pages.front_page import front_page_of
    from normless_papers.pages.site import write_pages_of
    from normless_papers.results.run_file import rebuilt, write_runs

    directory, source, claims = namespace.directory, namespace.source, namespace.claims
    if (directory is None) == (source is None):
        raise NormlessError("Expected either a folder of results, or --from with a file of runs.")
    page = namespace.page or (None if source is None else source.with_suffix(".html"))
    written = []
    with nullcontext(directory) if source is None else rebuilt(source) as folder:
        written += write_pages_of(folder, page)
        if claims is not None:
            claims.write_text(front_page_of(folder), encoding="utf-8")
            written.append(claims)
        if namespace.silent is not None:
            from normless_papers.pages.silent import silent_page
            from normless_papers.results.storage import stored

            namespace.silent.write_text(silent_page(list(stored(folder))), encoding="utf-8")
            written.append(namespace.silent)
        if namespace.runs is not None:
            write_runs(folder, namespace.runs)
            written.append(namespace.runs)
    sizes = {str(path): path.stat().st_size for path in written}
    text = "\n".join(f"wrote {path} ({size / 1e6:.1f} MB)" for path, size in sizes.items())
    return answer(namespace, {"page": str(written[0]), "bytes": sizes[str(written[0])], "files": sizes}, text)
