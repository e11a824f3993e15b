"""``normless report``: pages of results of the papers, of a run or of a sweep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer
from normless.errors import NormlessError
from normless.registry import EXTENSIONS


def add_arguments(parser: ArgumentParser) -> None:
    """Add the source of the pages and the files to write."""
    parser.add_argument(
        "directories",
        type=Path,
        nargs="*",
        default=[],
        metavar="DIR",
        help="folder of results, the --out of normless reproduce; several, as of several machines, are merged. Or "
        "the folder of a run of normless train, or the folder or YAML file of a sweep",
    )
    parser.add_argument(
        "--from",
        type=Path | None,
        default=None,
        dest="source",
        metavar="FILE",
        help="instead of DIR, or merged with it, a file of --runs; its checks and figures are made again without "
        "training",
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
        "--verdicts",
        type=Path | None,
        default=None,
        help="also write the verdicts on all artefacts with their reasons as Markdown",
    )
    parser.add_argument(
        "--runs",
        type=Path | None,
        default=None,
        help="also write their evidence, without trainings at smoke, as a Parquet file for --from",
    )
    parser.add_argument(
        "--protocols",
        type=Path | None,
        default=None,
        help="write the set-ups of all trainings beside the texts' sentences as Markdown; needs no results",
    )
    add_json_flag(parser)


@contextmanager
def _results_of(directories: Sequence[Path], source: Path | None) -> Iterator[Path]:
    """Make the folder of results of which the pages are; differing runs are named on standard error."""
    from normless_papers.results.run_file import merged, rebuilt

    with ExitStack() as opened:
        folders = [*directories, *([] if source is None else [opened.enter_context(rebuilt(source))])]
        if len(folders) > 1:
            folder, differing = opened.enter_context(merged(folders))
            sys.stderr.writelines(f"{sentence}\n" for sentence in differing)
            folders = [folder]
        yield folders[0]


def run(namespace: Namespace) -> int:
    """Write the pages and the other files, and list them."""
    directories, source, protocols = namespace.directories, namespace.source, namespace.protocols
    # A folder without results is refused before anything is written.
    written = _pages(namespace) if protocols is None or directories or source is not None else []
    if protocols is not None:
        from normless_papers.pages.silent import protocols_page

        protocols.write_text(protocols_page(), encoding="utf-8")
        written.append(protocols)
    sizes = {str(path): path.stat().st_size for path in written}
    text = "\n".join(f"wrote {path} ({size / 1e6:.1f} MB)" for path, size in sizes.items())
    return answer(namespace, {"page": str(written[0]), "bytes": sizes[str(written[0])], "files": sizes}, text)


def _pages(namespace: Namespace) -> list[Path]:
    """Write the pages of results, and the files of them that are asked for."""
    from normless_papers.pages.headline import front_page_of
    from normless_papers.pages.silent import silent_page
    from normless_papers.pages.site import write_pages_of
    from normless_papers.pages.verdicts import verdicts_page
    from normless_papers.results.reproduction import stored
    from normless_papers.results.run_file import write_runs

    directories, source = namespace.directories, namespace.source
    if not directories and source is None:
        raise NormlessError("Expected a folder of results, of a run or of a sweep, or --from with a file of runs.")
    if len(directories) == 1 and source is None:
        # Other files are of results of the papers.
        pages: list[Path] = EXTENSIONS["report"](directories[0], namespace.page)
        given = [f"--{name}" for name in ("claims", "silent", "verdicts", "runs") if namespace[name] is not None]
        if pages and given:
            raise NormlessError(
                f"Expected results of normless reproduce for {' and '.join(given)}; {directories[0]} is a run or a "
                "sweep, which has a page alone."
            )
        if pages:
            return pages
    page = namespace.page or (source.with_suffix(".html") if source is not None else directories[0] / "index.html")
    with _results_of(directories, source) as folder:
        written = write_pages_of(folder, page)
        texts: dict[str, Callable[[], str]] = {
            "claims": lambda: front_page_of(folder),
            "silent": lambda: silent_page(list(stored(folder))),
            "verdicts": lambda: verdicts_page(stored(folder)),
        }
        for name, text_of in texts.items():
            path: Path | None = namespace[name]
            if path is not None:
                path.write_text(text_of(), encoding="utf-8")
                written.append(path)
        if namespace.runs is not None:
            write_runs(folder, namespace.runs)
            written.append(namespace.runs)
    return written
