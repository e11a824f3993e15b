"""Progress of the demo: bars on a terminal, plain lines elsewhere, the words of the runs in both."""

from __future__ import annotations

import io

from rich.console import Console

from normless.sweeps.progress import DemoProgress


def test_lines_say_stages_and_runs() -> None:
    stream = io.StringIO()
    with DemoProgress(Console(file=stream, width=40)) as progress:
        progress.begin("16 layers, first epoch", 2)
        progress.finish("depth 16, skipinit, rate 0.1: training loss 1.928")
        progress.finish("depth 16, none, rate 0.1: diverged")
        progress.begin("16 layers, to the end", 1)
    assert stream.getvalue().splitlines() == [
        "16 layers, first epoch: 2 runs",
        "  depth 16, skipinit, rate 0.1: training loss 1.928",
        "  depth 16, none, rate 0.1: diverged",
        "16 layers, to the end: 1 runs",
    ]


def test_a_terminal_gets_a_bar_per_stage() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system=None)
    with DemoProgress(console) as progress:
        progress.begin("16 layers, first epoch", 3)
        progress.finish("depth 16, none, rate 0.1: diverged")
        progress.finish("depth 16, skipinit, rate 0.1: training loss 1.928")
        progress.begin("16 layers, to the end", 1)
    rows = stream.getvalue().splitlines()
    assert any("first epoch" in row and "2/3" in row and "training loss 1.928" in row for row in rows)
    assert any("to the end" in row and "0/1" in row for row in rows)
