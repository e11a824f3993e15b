"""Progress: a live table on a terminal, plain lines elsewhere, the numbers of the runs in both."""

from __future__ import annotations

import io

from rich.console import Console

from normless.lab.demo import plan_runs
from normless.lab.progress import LiveProgress, PlainProgress, format_accuracy, progress
from normless.lab.run import RunState
from normless.lab.settings import DemoSettings

RUNS = plan_runs(DemoSettings(depths=(16, 100), schemes=("none", "skipinit")))


def test_lines_say_epochs_and_outcomes() -> None:
    stream = io.StringIO()
    display = progress(RUNS, 2, Console(file=stream, width=40))
    assert isinstance(display, PlainProgress)
    with display:
        display.update(1, RunState("running"))
        display.update(1, RunState("running", 1, 0.5))
        display.update(1, RunState("trained", 2, 0.625))
        display.update(0, RunState("diverged", 2, float("nan")))
    assert stream.getvalue().splitlines() == [
        "depth 100, skipinit: epoch 1/2, test accuracy 50.0 %",
        "depth 100, skipinit: trained, test accuracy 62.5 % (1 of 4 runs)",
        "depth 100, none: diverged, test accuracy – (2 of 4 runs)",
    ]


def test_a_terminal_gets_a_table_by_depth() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    display = progress(RUNS, 4, console)
    assert isinstance(display, LiveProgress)
    with display:
        display.update(1, RunState("running", 3, 0.876))
        display.update(2, RunState("chance", 4, 0.1))
        console.print(display.table())
    text = stream.getvalue()
    rows = [line.split() for line in text.splitlines() if line.strip()[:3] in ("16 ", "100")][-4:]
    assert [row[:3] for row in rows] == [
        ["16", "none", "chance"],
        ["16", "skipinit", "waiting"],
        ["100", "none", "waiting"],
        ["100", "skipinit", "running"],
    ]
    assert rows[3][-2:] == ["87.6", "%"]


def test_accuracy_is_a_dash_where_there_is_none() -> None:
    assert [format_accuracy(accuracy) for accuracy in (None, float("nan"), 0.0, 1.0)] == [
        "–",
        "–",
        "0.0 %",
        "100.0 %",
    ]
