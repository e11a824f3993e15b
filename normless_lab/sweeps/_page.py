"""The page of a sweep: its figures, the optimum of each combination, and how it was measured."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import Column, Table, accuracy_against_rate, inks_of, optimum_against, save_png, save_svg
from normless_lab.plots._page import Figure, Page, write_page
from normless_lab.process import available_cores
from normless_lab.sweeps._result_tables import SweepResult, is_minimized
from normless_lab.sweeps._runs import OUTCOMES, versions
from normless_lab.sweeps._sweep import label_of

# The column of the names of lines.
SERIES = "series"


class SweepFigure(NamedTuple):
    """A figure of a sweep: the name of its files, its axes, and the caption on the page."""

    name: str
    axes: Axes
    caption: str


def write_sweep_page(
    result: SweepResult,
    folder: Path,
    *,
    metric: str = "test_accuracy",
    further: Sequence[SweepFigure] = (),
    page: str = "index.html",
) -> tuple[Path, ...]:
    """Write the figures of a sweep as SVG and PNG and its page as `page`; return the paths, that of the page last.

    The first figure shows the optimum against the first axis with numbers as labels; without such an axis, it shows
    the test accuracy against the rate.

    Args:
        result: the sweep's finished runs.
        folder: the folder of the files.
        metric: a column of the table of runs, which selects the optimum.
        further: more figures for the page.
        page: the name of the page's file.

    Raises:
        ValueError: no run is finished.
    """
    if result.runs.empty:
        raise ValueError(f"No run of the sweep {result.sweep.name} is finished; a page needs one.")
    folder.mkdir(parents=True, exist_ok=True)
    view = _View(result, metric)
    figures = [*view.figures(), *further]
    paths = [
        save(figure.axes, folder / f"{figure.name}.{kind}")
        for figure in figures
        for kind, save in (("svg", save_svg), ("png", save_png))
    ]
    contents = Page(
        title=result.sweep.name,
        finding=view.finding(),
        caution=view.caution(),
        figures=[Figure(figure.axes, figure.caption) for figure in figures],
        tables=[view.table()],
        facts=_facts(result),
    )
    return (*paths, write_page(contents, folder / page))


class _View:
    """The optima of a metric as a figure, a table and a sentence; accuracies are in percent."""

    def __init__(self, result: SweepResult, metric: str) -> None:
        self.sweep, self.metric = result.sweep, metric
        self.words = metric.replace("_", " ")
        self.unit, factor = (" %", 100.0) if metric.startswith("test_accuracy") else ("", 1.0)
        optima = result.optima(metric)
        self.optima = optima.assign(mean=factor * optima["mean"], deviation=factor * optima["deviation"])
        self.runs = result.runs.assign(**{metric: factor * result.runs[metric]})
        axes = [*result.sweep.axes]
        self.across = next((axis for axis in axes if _numbers(self.optima[axis])), None)
        if self.across is not None:
            self.optima = self.optima.sort_values(self.across, key=_as_numbers, kind="stable")
        lines = [axis for axis in axes if axis != self.across]
        for table in (self.optima, self.runs):
            table[SERIES] = table[lines].agg(", ".join, axis=1) if lines else self.sweep.name

    def figures(self) -> list[SweepFigure]:
        """Return the figure of the optima, or of the accuracies if no axis has numbers."""
        inks = inks_of({name: name for name in self.optima[SERIES]})
        if self.across is not None:
            table = self.optima.assign(**{self.across: self.optima[self.across].astype(float)})
            up = f"{self.words} (%)" if self.unit else self.words
            axes = optimum_against(
                table, series=SERIES, across=self.across, inks=inks, title=self.sweep.name, y_label=up
            )
            at = " at the best rate" if self._has_grid else ""
            caption = f"{self.words.capitalize()}{at}. Hollow: not trained."
            return [SweepFigure("optimum", axes, caption)]
        if self.metric == "test_accuracy":
            axes = accuracy_against_rate(self.runs, series=SERIES, inks=inks, title=self.sweep.name)
            caption = "Test accuracy at every rate. Hollow: not trained."
            return [SweepFigure("rates", axes, caption)]
        return []

    def finding(self) -> str:
        """Return the best combinations in a sentence, at the largest label of the axis with numbers."""
        table, where = self.optima, "Best"
        if self.across is not None:
            largest = max(table[self.across], key=float)
            table, where = table[table[self.across] == largest], f"At {self.across.replace('_', ' ')} {largest}"
        table = table.sort_values("mean", ascending=is_minimized(self.metric))
        trained = table["trainable"].astype(bool)
        best = table[trained].head(5).to_dict("records")
        parts = [f"{row[SERIES]} {self._text(row['mean'])} (rate {row['rate']:g})" for row in best]
        failed = ", ".join(table.loc[~trained, SERIES])
        parts += [f"{failed} did not train"] if failed else []
        return f"{where}, {self.words}: {'; '.join(parts)}."

    def table(self) -> Table:
        """Return a row per combination: the optimum, its deviation and rate, and the mean at every rate."""
        axes = [*self.sweep.axes] or [SERIES]
        rates = sorted(set(self.runs["rate"])) if self._has_grid else []
        groups = self.runs.assign(**{self.metric: self.runs[self.metric].mask(self.runs["outcome"] == "diverged")})
        means = groups.groupby([*axes, "rate"], sort=False)[self.metric].mean()
        rows = []
        for row in self.optima.to_dict("records"):
            labels = [str(row[axis]) for axis in axes]
            best_rate = f"{row['rate']:g}" if row["trainable"] else "–"
            at_rates = {rate: means.get((*labels, rate)) for rate in rates}
            texts = ["" if mean is None else self._text(mean, "diverged") for mean in at_rates.values()]
            trained = row["runs"] - row["diverged"] - row["chance"] - row["failed"]
            spread = [self._text(row["deviation"])] * (self.sweep.replicates > 1)
            rows.append([*labels, self._text(row["mean"]), *spread, best_rate, f"{trained} of {row['runs']}", *texts])
        spread = ["deviation"] * (self.sweep.replicates > 1)
        numbers = [self.words, *spread, "rate", "runs that trained", *(f"at {rate:g}" for rate in rates)]
        columns = [*map(Column, axes), *(Column(name, numeric=True) for name in numbers)]
        caption = "Each combination at its best rate, and its means at all rates" if rates else "Each combination"
        return Table(caption, columns, rows, row_headers=len(axes))

    def caution(self) -> str:
        """Return how many runs there are, and how rates were chosen."""
        replicates, best = self.sweep.replicates, self.sweep.best
        count = "one run" if replicates == 1 else f"{replicates} runs, of which the best {best} count"
        noise = "Small differences may be chance." if replicates == 1 else ""
        if not self._has_grid:
            return f"Each combination has {count}, at a rate that the sweep states. {noise}".strip()
        return (
            f"Each combination has {count}, at each rate. Its best rate is that of the best {self.words}, which is "
            f"also the number shown. {noise}".strip()
        )

    @property
    def _has_grid(self) -> bool:
        """Whether some combination was run at several rates."""
        return bool((self.runs.groupby([*self.sweep.axes] or [SERIES])["rate"].nunique() > 1).any())

    def _text(self, value: float, missing: str = "–") -> str:
        return missing if math.isnan(value) else f"{value:.1f}{self.unit}" if self.unit else f"{value:.4g}"


def _numbers(labels: pd.Series) -> bool:
    """Return whether an axis has two or more labels, all numbers."""
    return labels.nunique() > 1 and bool(_as_numbers(labels).notna().all())


def _as_numbers(labels: pd.Series) -> pd.Series:
    return pd.to_numeric(labels, errors="coerce")


def _facts(result: SweepResult) -> list[tuple[str, str]]:
    """Return the settings of the sweep and how it was executed."""
    sweep = result.sweep
    outcomes = result.runs["outcome"].value_counts()
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in OUTCOMES if outcome in outcomes)
    missing = f"; {result.missing} are missing" if result.missing else ""
    return [
        ("Settings", ", ".join(f"{name} {label_of(value)}" for name, value in sweep.base.items())),
        *((axis.capitalize(), ", ".join(labels)) for axis, labels in sweep.axes.items()),
        ("Rates", ", ".join(f"{rate:g}" for rate in sorted(set(result.runs["rate"])))),
        ("Seeds", ", ".join(map(str, sweep.seeds))),
        ("Runs", f"{len(result.runs)}: {counts}{missing}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions().items())),
        ("Machine", f"{platform.machine()}, {available_cores()} cores"),
        ("Date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
    ]
