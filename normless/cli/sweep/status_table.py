"""The status of a sweep for a person."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from normless.cli.colours import OUTCOME_COLOURS
from normless.sweeps import OUTCOMES, SweepStatus

# Runs in flight and errors that are listed; of the others the number is told.
MOST_LISTED = 12


def status_table(status: SweepStatus) -> RenderableType:
    """A row per combination of labels, the runs in flight, and what failed runs raised."""
    parts: list[RenderableType] = [_headline(status), "", _combinations(status)]
    if status.running:
        parts += ["", _running(status)]
    for error, runs in status.errors[:MOST_LISTED]:
        parts.append(Text(f"failed {runs} times: {error}", "red"))
    if len(status.errors) > MOST_LISTED:
        parts.append(f"… {len(status.errors) - MOST_LISTED} more kinds of errors")
    return Group(*parts)


def _headline(status: SweepStatus) -> str:
    words = [f"{status.name}: {status.finished} of {status.wanted} runs finished"]
    if status.running:
        words.append(f"{len(status.running)} running")
    if status.interrupted:
        words.append(f"{status.interrupted} interrupted")
    return ", ".join(words)


def _combinations(status: SweepStatus) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for axis in status.combinations[0].labels:
        made.add_column(axis)
    for name in ("finished", *OUTCOMES, "running"):
        made.add_column(name, justify="right")
    for one in status.combinations:
        counts = [Text(str(one.outcomes[name] or "–"), OUTCOME_COLOURS[name]) for name in OUTCOMES]
        done = f"{one.finished}/{one.wanted}"
        made.add_row(*one.labels.values(), done, *counts, Text(str(one.running or "–"), OUTCOME_COLOURS["running"]))
    return made


def _running(status: SweepStatus) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column("running")
    for name in ("rate", "seed", "epochs"):
        made.add_column(name, justify="right")
    for one in status.running[:MOST_LISTED]:
        labels = ", ".join(one.labels.values()) or status.name
        made.add_row(labels, f"{one.rate:.4g}", str(one.seed), f"{one.epochs}/{one.of}")
    if len(status.running) > MOST_LISTED:
        made.add_row(f"… {len(status.running) - MOST_LISTED} more")
    return made
