"""The figures and the page of a demo, from its tables."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from normless import __version__
from normless.lab.laws import LAWS
from normless.lab.progress import format_accuracy
from normless.lab.settings import DemoSettings
from normless.machine import available_cores
from normless.report import (
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
    settings: DemoSettings, runs: pd.DataFrame, signal: pd.DataFrame
) -> tuple[tuple[Path, ...], Path]:
    """Write ``accuracy`` and ``skip-variance`` as SVG and PNG, and ``index.html``, to the settings' folder.

    Returns:
        The paths of the figures and the path of the page.
    """
    from normless.data import load_data

    data = load_data(settings.data)
    settings.out.mkdir(parents=True, exist_ok=True)
    drawn = {
        "accuracy": accuracy_against_depth(runs, chance=1 / data.classes),
        "skip-variance": skip_variance_against_block(signal, laws={name: law.text for name, law in LAWS.items()}),
    }
    captions = {"accuracy": _accuracy_caption(settings), "skip-variance": _signal_caption(signal)}
    paths = []
    for name, axes in drawn.items():
        paths += [
            save_svg(axes, settings.out / f"{name}.svg"),
            save_png(axes, settings.out / f"{name}.png"),
        ]
    page = Page(
        title="Depth with and without normalization",
        finding=finding(runs),
        caution=_caution(settings, data.train_size, data.image_shape),
        figures=[
            Figure(inline_svg(axes, name=name, description=captions[name]), captions[name])
            for name, axes in drawn.items()
        ],
        tables=[_runs_table(runs)],
        facts=_facts(settings, data.provenance),
    )
    return tuple(paths), write_page(page, settings.out / "index.html")


def finding(runs: pd.DataFrame) -> str:
    """What became of the deepest networks, in one sentence."""
    deepest = runs[runs["depth"] == runs["depth"].max()]
    parts = []
    for outcome, verb in (("trained", "trained"), ("chance", "stayed at chance"), ("diverged", "diverged")):
        rows = deepest[deepest["outcome"] == outcome]
        if rows.empty:
            continue
        names = [
            # "none diverged" would say that all went well.
            "the bare network" if row["scheme"] == "none" else row["scheme"]
            for row in rows.to_dict("records")
        ]
        if outcome == "trained":
            accuracies = map(format_accuracy, rows["test_accuracy"])
            names = [f"{name} ({accuracy})" for name, accuracy in zip(names, accuracies, strict=True)]
        parts.append(f"{_and(names)} {verb}")
    return f"At {runs['depth'].max()} layers and one learning rate for all, {'; '.join(parts)}."


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _caution(settings: DemoSettings, train_size: int, image_shape: tuple[int, ...]) -> str:
    _, height, width = image_shape
    return (
        f"A small run: one seed, {settings.epochs} epochs over {train_size} images of {height}×{width} pixels, "
        f"networks of width {settings.width}. It shows which networks train at all at this rate; it does not "
        "claim the papers’ numbers, which come from larger data, wider networks and a rate tuned per scheme."
    )


def _accuracy_caption(settings: DemoSettings) -> str:
    return (
        f"Test accuracy after {settings.epochs} epochs at rate {settings.rate:g}, against depth. "
        "A hollow marker is a run that diverged or stayed at chance."
    )


def _signal_caption(signal: pd.DataFrame) -> str:
    return (
        f"Variance on the skip path against the block d at initialization, depth {signal['depth'].max()}. Points "
        "are measured, lines predicted from the weights, small images and their borders included. Dotted is the "
        "law of an endlessly wide network without borders: 2ᵈ without normalization, d with batch norm (which "
        "starts anew where a convolution on the skip path changes the resolution), 1 with skipinit and fixup."
    )


def _runs_table(runs: pd.DataFrame) -> Table:
    return Table(
        caption="Every run",
        columns=[
            Column("depth", numeric=True),
            Column("scheme"),
            Column("outcome"),
            Column("test accuracy", numeric=True),
            Column("seconds per epoch", numeric=True),
        ],
        rows=[
            [
                str(row["depth"]),
                row["scheme"],
                row["outcome"],
                format_accuracy(row["test_accuracy"]),
                f"{row['seconds_per_epoch']:.2f}",
            ]
            for row in runs.to_dict("records")
        ],
        row_headers=2,
    )


def _facts(settings: DemoSettings, provenance: str) -> list[tuple[str, str]]:
    workers = settings.workers or available_cores()
    return [
        ("Data set", provenance),
        (
            "Networks",
            f"Wide-ResNets of width {settings.width}, depths {', '.join(map(str, settings.depths))}",
        ),
        ("Schemes", ", ".join(settings.schemes)),
        (
            "Budget",
            f"{settings.epochs} epochs per run, batch size {settings.batch_size}, rate {settings.rate:g}",
        ),
        ("Seed", f"{settings.seed}, the same for every run; one run per depth and scheme"),
        ("Versions", f"normless {__version__}, torch {version('torch')}, Python {platform.python_version()}"),
        (
            "Machine",
            f"{platform.machine()}, {available_cores()} cores shared by {workers} processes, "
            "so seconds per epoch are those of a run that shares the machine; those of a diverged run are "
            "extrapolated from the steps it took",
        ),
        ("Date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
    ]
