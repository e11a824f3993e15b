"""``normless probe MODEL``: measurements of a network on one batch, as tables and figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.batch import add_batch_arguments, cross_entropy, subject_of
from normless.cli.network import as_text, in_words, shapes, table, terminal_width
from normless.output import add_json_flag, print_json

if TYPE_CHECKING:
    import pandas as pd

    from normless.cli.batch import Subject
    from normless.probes import Measurements, Watcher

# Rows of a table that are printed: the first and last half of them.
MOST_ROWS = 12


def add_arguments(parser: ArgumentParser) -> None:
    """Add the network and batch, the probes, and where files go."""
    add_batch_arguments(parser)
    parser.add_argument(
        "--probes",
        type=str,
        nargs="+",
        default=None,
        help="what to measure, all in one pass; signal, activations, gradients and logits if left out; an unknown "
        "one lists them",
    )
    parser.add_argument("--eval", action="store_true", help="measure in evaluation mode; training mode if left out")
    parser.add_argument(
        "--out", type=Path | None, default=None, help="folder for the whole tables (CSV) and their figures (SVG)"
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Measure, print, write."""
    from normless.probes import USUAL, probe, watchers_of

    chosen = tuple(namespace.probes or USUAL)
    stated = watchers_of(chosen)
    # The output of a file's code is not part of the JSON object.
    with redirect_stdout(sys.stderr) if namespace.json else nullcontext():
        subject = subject_of(namespace)
        measured = probe(
            subject.network,
            subject.batch,
            chosen,
            loss=cross_entropy,
            residual_map=subject.map,
            training=not namespace.eval,
        )
        written = [] if namespace.out is None else _write(measured, subject, stated, namespace.out)
    if namespace.json:
        header = {"model": namespace.model, "scheme": subject.scheme, "input": shapes(subject.inputs)}
        setting = {"data": subject.data, "seed": namespace.seed, "mode": "eval" if namespace.eval else "train"}
        print_json(header | setting | measured.to_dict() | {"files": [str(path) for path in written]})
        return 0
    mode = "eval mode" if namespace.eval else "train mode"
    words = [namespace.model, *([f"converted by {subject.scheme}"] if subject.scheme else [])]
    words += [in_words(subject.inputs), subject.data, f"seed {namespace.seed}", mode, f"loss {measured.loss:.4g}"]
    sys.stdout.write(", ".join(words) + "\n")
    for name in measured:
        sys.stdout.write(f"\n{name}\n{_as_text(measured[name])}\n")
    missed = [f"  {item}" for item in measured.missed]
    sys.stdout.write("\n".join(["", "not seen", *missed, ""]) if missed else "")
    sys.stdout.write("".join(f"wrote {path}\n" for path in written))
    return 0


def _as_text(measured: pd.DataFrame) -> str:
    """The first and last rows, without the columns that hold nothing."""
    import pandas as pd

    def cell(value: Any) -> str:
        return "–" if pd.isna(value) else f"{value:.3g}" if isinstance(value, float) else str(value)

    shown = measured.dropna(axis="columns", how="all")
    cells = [tuple(map(cell, row)) for row in shown.itertuples(index=False)]
    left_out = len(cells) - MOST_ROWS
    if left_out > 1:
        half = MOST_ROWS // 2
        cells = [*cells[:half], (f"… {left_out} rows", *[""] * (shown.shape[1] - 1)), *cells[-half:]]
    numbers = tuple(i for i, column in enumerate(shown.columns) if shown[column].dtype.kind in "fiu")
    return as_text(table([str(column) for column in shown.columns], cells, right=numbers), terminal_width())


def _write(measured: Measurements, subject: Subject, probes: Mapping[str, Watcher], folder: Path) -> list[Path]:
    """Every table as CSV and, where there is one, its figure as SVG."""
    from normless.plots import figures_of, save_svg

    figures = list(figures_of(measured.tables, subject.scheme or "batch_norm", probes))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in measured.tables.items():
        written.append(folder / f"{name}.csv")
        rows.to_csv(written[-1], index=False)
    for name, _, axes in figures:
        written.append(folder / f"{name}.svg")
        save_svg(axes, written[-1])
    return written
