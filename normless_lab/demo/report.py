"""The figures and the page of a demo, from its tables."""

from __future__ import annotations

import math
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from normless._version import __version__
from normless_lab.demo.settings import DemoSettings
from normless_lab.demo.signal import LAWS
from normless_lab.plots import (
    Column,
    Figure,
    Page,
    Table,
    accuracy_against_depth,
    save_png,
    save_svg,
    skip_variance_against_block,
    write_page,
)
from normless_lab.process import available_cores

if TYPE_CHECKING:
    from normless_lab.data import ImageData


def write_demo_report(
    settings: DemoSettings, runs: pd.DataFrame, tried: pd.DataFrame, signal: pd.DataFrame, chance: float
) -> tuple[tuple[Path, ...], Path]:
    """Write ``accuracy`` and ``skip-variance`` as SVG and PNG, and ``index.html``; returns the paths of both."""
    from normless_lab.data import load_data

    data = load_data(settings.data)
    settings.out.mkdir(parents=True, exist_ok=True)
    texts = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    values = _values(settings, data) | {"deepest": signal["depth"].max()}
    laws = {name: law.text for name, law in LAWS.items()}
    figures = {
        "accuracy": accuracy_against_depth(runs, chance=chance),
        "skip-variance": skip_variance_against_block(signal, laws=laws),
    }
    captions = {name: text.format(**values) for name, text in texts["captions"].items()}
    paths = [
        save(axes, settings.out / f"{name}.{kind}")
        for name, axes in figures.items()
        for kind, save in (("svg", save_svg), ("png", save_png))
    ]
    page = Page(
        title=texts["title"],
        finding=finding(runs),
        caution=texts["caution"].format(**values),
        figures=[Figure(axes, captions[name]) for name, axes in figures.items()],
        tables=[table_of_runs(runs), _rates_table(tried)],
        facts=[(name, text.format(**values)) for name, text in texts["facts"].items()],
    )
    return tuple(paths), write_page(page, settings.out / "index.html")


def finding(runs: pd.DataFrame) -> str:
    """The outcome of the deepest networks, in one sentence."""
    deepest = runs[runs["depth"] == runs["depth"].max()]
    phrases = {"trained": "trained", "untrained": "did not train", "diverged": "diverged at every rate"}
    parts = []
    for outcome, phrase in phrases.items():
        rows = deepest[deepest["outcome"] == outcome]
        # "none diverged" would mean the opposite.
        names = list(rows["scheme"].replace("none", "the network without normalization"))
        if outcome != "diverged":
            names = [
                f"{name} ({format_accuracy(accuracy)})"
                for name, accuracy in zip(names, rows["test_accuracy"], strict=True)
            ]
        if names:
            parts.append(f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} {phrase}")
    return f"At {runs['depth'].max()} layers, each scheme at its best learning rate, {'; '.join(parts)}."


def format_accuracy(accuracy: float) -> str:
    """Format an accuracy as ``67.2 %``, or a dash if it is missing."""
    return "–" if accuracy != accuracy else f"{100 * accuracy:.1f} %"


def format_rate(rate: float) -> str:
    """Format a rate as ``0.025``, or a dash if it is missing."""
    return "–" if rate != rate else f"{rate:g}"


def table_of_runs(runs: pd.DataFrame) -> Table:
    """Return a row per network at its best rate, from the table of runs of a `DemoResult`."""
    return Table(
        caption="Each scheme at its best rate. A network is trained if it has at least half of batch norm’s gain "
        "over chance; a dash is one that diverged at every rate, with the accuracy at the lowest",
        columns=[
            Column(name, numeric=name not in ("scheme", "outcome"))
            for name in ("depth", "scheme", "best rate", "outcome", "test accuracy", "seconds per epoch")
        ],
        rows=[
            [
                str(row["depth"]),
                row["scheme"],
                format_rate(row["rate"]),
                row["outcome"],
                format_accuracy(row["test_accuracy"]),
                f"{row['seconds_per_epoch']:.2f}",
            ]
            for row in runs.to_dict("records")
        ],
        row_headers=2,
    )


def _rates_table(tried: pd.DataFrame) -> Table:
    rates = sorted({float(rate) for rate in tried["rate"]})
    return Table(
        caption="Training loss of the first epoch at each rate, by which the rates are chosen",
        columns=[
            Column("depth", numeric=True),
            Column("scheme"),
            *(Column(format_rate(rate), numeric=True) for rate in rates),
        ],
        rows=[
            [
                *map(str, network),
                *rows.sort_values("rate")["training_loss"].map(lambda x: "diverged" if x == math.inf else f"{x:.3f}"),
            ]
            for network, rows in tried.groupby(["depth", "scheme"], sort=False)
        ],
        row_headers=2,
    )


def _values(settings: DemoSettings, data: ImageData) -> dict[str, Any]:
    """Return the values for the texts of the page."""
    _, height, width = data.image_shape
    return vars(settings) | {
        "rates": ", ".join(map(format_rate, settings.rates)),
        "number_of_rates": len(settings.rates),
        "depths": ", ".join(map(str, sorted(settings.depths))),
        "schemes": ", ".join(settings.schemes),
        "provenance": data.provenance,
        "train_size": data.train_size,
        "image_height": height,
        "image_width": width,
        "normless": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": available_cores(),
        "workers": settings.workers or available_cores(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
