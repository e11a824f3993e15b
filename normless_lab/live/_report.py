"""The page of a run, and of the sweeps whose runs a folder holds, for `normless report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from normless.code_names import names_of_data
from normless.errors import NormlessError
from normless.spec import is_run
from normless_lab.live._view import Chart, View
from normless_lab.live._views import run_view
from normless_lab.plots import Column, Table, css_variables, lines
from normless_lab.plots._page import Figure, Page, write_page
from normless_lab.sweeps import Laboratory, Sweep
from normless_lab.sweeps._page import write_sweep_page

PAGE, RUNS_FILE = "index.html", "runs.sqlite"


def write_report(path: Path, page: Path | None = None, *, default: Path = Path("normless-sweeps")) -> list[Path]:
    """Write the page of a run's folder, of a sweep's folder, or of a sweep's YAML file; nothing for other paths.

    The page is `page`, or `index.html` in the folder; each further sweep there has a folder of its file's name.

    Args:
        path: the folder or file.
        page: the file of the page.
        default: where runs of a YAML file are, unless a folder beside the file has this sweep's.

    Raises:
        NormlessError, ValueError: no run of the sweep is finished.
    """
    if is_run(path):
        page = page or path / PAGE
        page.parent.mkdir(parents=True, exist_ok=True)
        return [write_page(_page_of(run_view(path)), page)]
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        sweep = Sweep.from_yaml(path)
        names = (RUNS_FILE, f"{path.stem}.yaml")
        folders = (default, *sorted(path.absolute().parent.iterdir()))
        folder = next((folder for folder in folders if all((folder / name).is_file() for name in names)), None)
        if folder is None:
            raise NormlessError(
                f"No run of the sweep {sweep.name} is in {default} or beside {path}; pass the folder that was the "
                "--out of normless sweep run, in place of the file."
            )
        return _pages_of(folder, {path.stem: sweep}, page)
    if not (path / RUNS_FILE).is_file():
        return []
    with names_of_data(path):
        sweeps = {file.stem: Sweep.from_yaml(file) for file in sorted(path.glob("*.yaml"))}
    if not sweeps:
        raise NormlessError(
            f"{path} has runs, and no YAML file of their sweep, as normless sweep run leaves one there; pass it "
            "to normless sweep run with --page."
        )
    return _pages_of(path, sweeps, page)


def _pages_of(folder: Path, sweeps: dict[str, Sweep], page: Path | None) -> list[Path]:
    """Write the page of each sweep by the name of its file: a sweep's own name may lead out of the folder."""
    front, written = page or folder / PAGE, list[Path]()
    with Laboratory(folder) as lab:
        for name, sweep in sweeps.items():
            place, file = (front.parent / name, PAGE) if written else (front.parent, front.name)
            *figures, made = write_sweep_page(lab.read(sweep), place, page=file)
            written += [made, *figures]
    return written


def _page_of(view: View) -> Page:
    """Return a run's curves, findings and settings as a page."""
    rows = [list(finding) for finding in view.findings]
    tables = [Table("Findings of the watch", [Column("finding"), Column("what to do")], rows)] if rows else []
    return Page(
        title=view.title,
        finding=f"{view.state.capitalize()}: {view.words}.",
        caution=" ".join(["One run with one seed: small differences may be chance.", *view.problems]),
        figures=list(_figures(view.charts)),
        tables=[*tables, *view.tables],
        facts=view.settings,
    )


def _figures(charts: Sequence[Chart]) -> Iterator[Figure]:
    colours = css_variables()
    for chart in charts:
        tables: list[pd.DataFrame] = [
            pd.DataFrame({"series": each.name, "x": list(each.x), "y": np.array(each.y, dtype=float)})
            for each in chart.lines
        ]
        points = pd.concat(tables)
        if points["y"].notna().any():
            inks = {each.name: colours[each.ink] for each in chart.lines}
            up = f"{chart.title.lower()}{f' ({chart.unit})' if chart.unit else ''}"
            log = "y" if chart.log and (points["y"].dropna() > 0).any() else ""
            axes = lines(
                points, x="x", y="y", by="series", inks=inks, title=chart.title, x_label=chart.x_label, y_label=up,
                log=log, x_marks=chart.marks,
            )  # fmt: skip
            yield Figure(axes, f"{chart.title} by {chart.x_label}: {', '.join(inks)}.")
