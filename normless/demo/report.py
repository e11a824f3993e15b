"""The figures and the page of a demo, from its tables."""

from __future__ import annotations

import math
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from normless import __version__
from normless.demo.settings import DemoSettings
from normless.demo.signal import LAWS
from normless.machine import available_cores
from normless.plots import (
    Column,
    Figure,
    Page,
    Table,
    accuracy_against_depth,
    inline_svg,
    save_png,
    save_svg,
    skip_variance_against_block,
    write_page,
)


def write_demo_report(
    settings: DemoSettings, runs: pd.DataFrame, tried: pd.DataFrame, signal: pd.DataFrame, chance: float
) -> tuple[tuple[Path, ...], Path]:
    """Write ``accuracy`` and ``skip-variance`` as SVG and PNG, and ``index.html``; returns the paths of both."""
    from normless.data import load_data

    data = load_data(settings.data)
    settings.out.mkdir(parents=True, exist_ok=True)
    # By name: the axes and the caption.
    figures = {
        "accuracy": (
            accuracy_against_depth(runs, chance=chance),
            f"Test accuracy after {settings.epochs} epochs against depth, each scheme at its best of the "
            f"rates {_rates(settings)}, chosen by training loss. A hollow marker is a network that did not train.",
        ),
        "skip-variance": (
            skip_variance_against_block(signal, laws={name: law.text for name, law in LAWS.items()}),
            f"Variance on the skip path against the block d at initialization, depth {signal['depth'].max()}. Points "
            "are measured, lines predicted from the weights, with padding and small images. Dotted is the law of the "
            "infinite-width limit without padding: 2ᵈ without normalization, d with batch norm (which starts again "
            "where a convolution on the skip path changes the resolution), 1 with skipinit and fixup.",
        ),
    }
    paths = [
        save(axes, settings.out / f"{name}.{kind}")
        for name, (axes, _) in figures.items()
        for kind, save in (("svg", save_svg), ("png", save_png))
    ]
    _, height, width = data.image_shape
    page = Page(
        title="Depth with and without normalization",
        finding=finding(runs),
        caution=f"A small run: one seed, {settings.epochs} epochs over {data.train_size} images of {height}×{width} "
        f"pixels, networks of width {settings.width}, {len(settings.rates)} learning rates. It shows which networks "
        "train; it does not claim the papers’ numbers, which come from larger data, wider networks and finer grids "
        "of rates.",
        figures=[
            Figure(inline_svg(axes, name=name, description=caption), caption)
            for name, (axes, caption) in figures.items()
        ],
        tables=[table_of_runs(runs), _rates_table(tried)],
        facts=_facts(settings, data.provenance),
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
                f"{name} ({format_accuracy(one)})" for name, one in zip(names, rows["test_accuracy"], strict=True)
            ]
        if names:
            parts.append(f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} {phrase}")
    return f"At {runs['depth'].max()} layers, each scheme at its best learning rate, {'; '.join(parts)}."


def format_accuracy(accuracy: float) -> str:
    """``67.2 %``; a dash where there is none."""
    return "–" if accuracy != accuracy else f"{100 * accuracy:.1f} %"


def format_rate(rate: float) -> str:
    """``0.025``; a dash where there is none."""
    return "–" if rate != rate else f"{rate:g}"


def table_of_runs(runs: pd.DataFrame) -> Table:
    """A row per network at its best rate, of the table of runs of a `DemoResult`."""
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


def _facts(settings: DemoSettings, provenance: str) -> list[tuple[str, str]]:
    workers = settings.workers or available_cores()
    depths = ", ".join(map(str, sorted(settings.depths)))
    facts = {
        "Data set": provenance,
        "Networks": f"Wide-ResNets of width {settings.width}, depths {depths}",
        "Schemes": ", ".join(settings.schemes),
        "Budget": f"{settings.epochs} epochs per run, batch size {settings.batch_size}, "
        "a rate that falls linearly to 0",
        "Rates": f"{_rates(settings)}: an epoch at each; the run with the lowest training loss is then trained "
        "to the end",
        "Seed": f"{settings.seed}, the same for every run",
        "Versions": f"normless {__version__}, torch {version('torch')}, Python {platform.python_version()}",
        "Machine": f"{platform.machine()}, {available_cores()} cores shared by {workers} processes, so seconds per "
        "epoch are those of a run that shares the machine; those of a diverged run are extrapolated from the steps "
        "it took",
        "Date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return list(facts.items())


def _rates(settings: DemoSettings) -> str:
    return ", ".join(map(format_rate, settings.rates))
