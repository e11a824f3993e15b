"""``normless probe MODEL``: measure a network on one batch, with tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli._batch import add_batch_arguments, cross_entropy, subject_of
from normless.cli._names import check_names
from normless.cli._network import in_parts
from normless.cli._output import add_json_flag, answer, working
from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    import pandas as pd

    from normless.cli._batch import NetworkAndBatch
    from normless.probes import Measurements, Watcher

# Number of rows printed of a table, half of them from its end.
MOST_ROWS = 12


def add_arguments(parser: ArgumentParser) -> None:
    """Add the network, the batch, the probes, and the output folder."""
    add_batch_arguments(parser)
    parser.add_argument(
        "--probes",
        type=str,
        nargs="+",
        default=None,
        help="probes to measure in one pass: names, with arguments as in \"activations(kind='norm')\", FILE.py:NAME "
        "or MODULE:NAME; by default signal, activations, gradients and logits; an unknown name lists all",
    )
    parser.add_argument("--eval", action="store_true", help="measure in evaluation mode instead of training mode")
    parser.add_argument(
        "--out", type=Path | None, default=None, help="folder for the whole tables (CSV) and their figures (SVG)"
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Measure, print, and write files."""
    check_names(vars(namespace))
    with working(namespace, f"measuring {namespace.model}"):
        from normless.probes import probe
        from normless.probes._measure import DEFAULT_PROBES, make_watchers

        chosen = tuple(namespace.probes or DEFAULT_PROBES)
        stated = make_watchers(chosen)
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
    mode = "eval" if namespace.eval else "train"
    facts = (
        subject.facts(namespace) | {"mode": mode} | measured.to_dict() | {"files": [str(path) for path in written]}
    )
    lines = [subject.heading(namespace, f"{mode} mode", f"loss {measured.loss:.4g}")]
    lines += [f"\n{name}\n{_as_text(measured[name])}" for name in measured]
    if measured.missed:
        lines += ["\nnot seen", *(f"  {item}" for item in measured.missed)]
    return answer(namespace, facts, "\n".join([*lines, *(f"wrote {path}" for path in written)]))


def _as_text(measured: pd.DataFrame) -> str:
    """Format the first and last rows, without empty columns."""
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
    return in_parts([str(column) for column in shown.columns], cells, right=numbers)


def _write(
    measured: Measurements, subject: NetworkAndBatch, probes: Mapping[str, Watcher], folder: Path
) -> list[Path]:
    """Write every table as CSV, and its figure, if it has one, as SVG."""
    from normless.saving._csv_files import write_csv

    draw = EXTENSIONS["probe_figures"]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in measured.tables.items():
        written.append(folder / f"{name}.csv")
        write_csv(rows, written[-1])
    return [*written, *draw(measured.tables, subject.scheme or "batch_norm", probes, folder)]
