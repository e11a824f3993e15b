"""Sweeps as text for a terminal: the status of a sweep, and the optima of a finished sweep."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from normless.cli import OUTCOME_COLOURS, as_text, table
from normless_lab.sweeps import OUTCOMES
from normless_lab.sweeps._status import SweepStatus

# Number of listed running runs and errors.
MOST_LISTED = 12


def status_table(status: SweepStatus) -> RenderableType:
    """Return a row per combination of labels, the running runs, and the errors of failed runs."""
    words = [f"{status.name}: {status.finished} of {status.wanted} runs finished"]
    words += [f"{len(status.running)} running"] if status.running else []
    words += [f"{status.interrupted} interrupted"] if status.interrupted else []
    parts: list[RenderableType] = [", ".join(words), "", _combinations(status)]
    if status.running:
        parts += ["", _running(status)]
    parts += [Text(f"failed {runs} times: {error}", "red") for error, runs in status.errors[:MOST_LISTED]]
    if len(status.errors) > MOST_LISTED:
        parts.append(f"… {len(status.errors) - MOST_LISTED} more kinds of errors")
    return Group(*parts)


def _combinations(status: SweepStatus) -> RenderableType:
    axes = list(status.combinations[0].labels)
    rows = [
        (
            *combination.labels.values(),
            f"{combination.finished}/{combination.wanted}",
            *(Text(str(combination.outcomes[name] or "–"), OUTCOME_COLOURS[name]) for name in OUTCOMES),
            Text(str(combination.running or "–"), OUTCOME_COLOURS["running"]),
        )
        for combination in status.combinations
    ]
    titles = [*axes, "finished", *OUTCOMES, "running"]
    return table(titles, rows, right=tuple(range(len(axes), len(titles))))


def _running(status: SweepStatus) -> RenderableType:
    rows = [
        (", ".join(run.labels.values()) or status.name, f"{run.rate:.4g}", str(run.seed), f"{run.epochs}/{run.of}")
        for run in status.running[:MOST_LISTED]
    ]
    if len(status.running) > MOST_LISTED:
        rows.append((f"… {len(status.running) - MOST_LISTED} more", "", "", ""))
    return table(["running", "rate", "seed", "epochs"], rows, right=(1, 2, 3))


def result_text(facts: dict[str, Any], axes: list[str], file: object) -> str:
    """Return the JSON object of ``normless sweep run`` as text, for a sweep with these axes in this file."""
    titles = [*axes, "metric", "mean", "deviation", "n", "rate", "rate range", "at an end"]
    rows = [
        (
            *(str(row[axis]) for axis in axes),
            row["metric"],
            *(_number(row[name]) for name in ("mean", "deviation")),
            str(row["n"]),
            _number(row["rate"]),
            _range(row["rate_low"], row["rate_high"]),
            row["edge"] or "–",
        )
        for row in facts["optima"]
    ]
    numeric = tuple(range(len(axes) + 1, len(axes) + 5))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in facts["outcomes"].items() if count)
    lines = [f"{facts['name']}: {facts['runs']} runs: {counts or 'none is finished'}"]
    lines += ["", as_text(table(titles, rows, right=numeric))] if rows else []
    lines += [f"failed with {error}" for error in facts["errors"]]
    if facts["errors"]:
        lines.append(f"to carry these out again: normless sweep retry {file} --out {facts['out']}")
    if facts["missing"]:
        shards = f"{facts['missing']} runs are missing, of other shards; "
        lines.append(shards + "start those, and this one again, or each with --wait.")
    lines += [f"wrote {path}" for path in facts["files"]]
    return "\n".join(lines)


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4g}"


def _range(low: float, high: float) -> str:
    return _number(low) if low != low or low == high else f"{_number(low)} … {_number(high)}"
